#include "services/scheduler/accounting.h"

#include <algorithm>

#include "common/base/check.h"

namespace lockstep::scheduler {

int64_t BlocksFor(int64_t tokens, int64_t kv_block_tokens) {
  return tokens / kv_block_tokens + (tokens % kv_block_tokens != 0 ? 1 : 0);
}

int64_t BlocksWhole(const Demand& demand, int64_t kv_block_tokens) {
  return BlocksFor(demand.length + demand.new_tokens_max, kv_block_tokens);
}

void Accounting::AddWorker(const WorkerName& name, const WorkerCapacity& capacity) {
  const bool added = accounts_.try_emplace(name, Account{.capacity = capacity}).second;
  LOCKSTEP_CHECK(added) << name.id << " has an account already";
}

void Accounting::RemoveWorker(const WorkerName& name) {
  const auto it = accounts_.find(name);
  if (it == accounts_.end()) return;
  ticket_count_ -= it->second.charges.size();
  accounts_.erase(it);
}

Accounting::Charge Accounting::Estimate(const Account& account, const Demand& demand) const {
  const int64_t block = account.capacity.kv_block_tokens;
  const int64_t growth = std::min(demand.new_tokens_max, options_.horizon_tokens);
  const int64_t prefix_blocks = demand.prompt_tokens / block;
  return {.prefix_hash = demand.prefix_hash,
          .prefix_blocks = prefix_blocks,
          .own_blocks = BlocksFor(demand.length + growth, block) - prefix_blocks};
}

bool Accounting::Fits(const WorkerName& name, const Demand& demand) const {
  const auto it = accounts_.find(name);
  if (it == accounts_.end()) return false;
  const Account& account = it->second;
  const WorkerCapacity& capacity = account.capacity;
  if (BlocksWhole(demand, capacity.kv_block_tokens) > capacity.kv_blocks) return false;
  if (account.charges.empty()) return true;
  if (static_cast<int64_t>(account.charges.size()) >= capacity.sequences_max) return false;
  const Charge charge = Estimate(account, demand);
  const bool shared = account.prefixes.contains(demand.prefix_hash);
  const int64_t more = charge.own_blocks + (shared ? 0 : charge.prefix_blocks);
  return account.reserved() + more <= capacity.kv_blocks * options_.overcommit_percent / 100;
}

void Accounting::Reserve(const WorkerName& name, base::TicketId ticket, const Demand& demand) {
  const auto it = accounts_.find(name);
  LOCKSTEP_CHECK(it != accounts_.end()) << name.id << " has no account";
  Account& account = it->second;
  const Charge charge = Estimate(account, demand);
  const bool added = account.charges.try_emplace(ticket, charge).second;
  LOCKSTEP_CHECK(added) << "ticket " << ticket << " is charged already";
  Count(account, charge, 1);
  ++ticket_count_;
}

void Accounting::Adopt(const WorkerName& name, base::TicketId ticket, int64_t kv_blocks) {
  const auto it = accounts_.find(name);
  LOCKSTEP_CHECK(it != accounts_.end()) << name.id << " has no account";
  Account& account = it->second;
  const int64_t growth = BlocksFor(options_.horizon_tokens, account.capacity.kv_block_tokens);
  // A prefix of no blocks under the ticket's own number is shared with nobody.
  const Charge charge{
      .prefix_hash = ticket.value(), .own_blocks = kv_blocks + growth, .used_blocks = kv_blocks};
  if (!account.charges.try_emplace(ticket, charge).second) return;
  account.used_blocks += kv_blocks;
  Count(account, charge, 1);
  ++ticket_count_;
}

void Accounting::Release(const WorkerName& name, base::TicketId ticket) {
  const auto it = accounts_.find(name);
  if (it == accounts_.end()) return;
  Account& account = it->second;
  const auto found = account.charges.find(ticket);
  if (found == account.charges.end()) return;
  const Charge charge = found->second;
  Count(account, charge, -1);
  // The worker's free count will say so at its next report; until then the blocks that nobody
  // shares are taken off here, so that capacity does not lie idle for a heartbeat.
  if (charge.used_blocks > 0) {
    const bool shared = account.prefixes.contains(charge.prefix_hash);
    const int64_t freed = charge.used_blocks - (shared ? charge.prefix_blocks : 0);
    account.used_blocks = std::max<int64_t>(0, account.used_blocks - std::max<int64_t>(0, freed));
  }
  account.charges.erase(found);
  --ticket_count_;
}

void Accounting::ApplyTruth(const WorkerName& name, int64_t kv_blocks_free,
                            std::span<const HeldTicket> held) {
  const auto it = accounts_.find(name);
  if (it == accounts_.end()) return;
  Account& account = it->second;
  for (const HeldTicket& ticket : held) {
    const auto found = account.charges.find(ticket.ticket);
    if (found == account.charges.end() || found->second.used_blocks == ticket.kv_blocks) continue;
    Count(account, found->second, -1);
    found->second.used_blocks = std::max<int64_t>(0, ticket.kv_blocks);
    Count(account, found->second, 1);
  }
  account.used_blocks = std::clamp<int64_t>(account.capacity.kv_blocks - kv_blocks_free, 0,
                                            account.capacity.kv_blocks);
}

void Accounting::Count(Account& account, const Charge& charge, int64_t sign) {
  CountPrefix(account, charge, sign);
  if (charge.used_blocks == 0) {
    account.waiting_blocks += sign * charge.own_blocks;
    return;
  }
  const int64_t growth = charge.prefix_blocks + charge.own_blocks - charge.used_blocks;
  account.growth_blocks += sign * std::max<int64_t>(0, growth);
}

void Accounting::CountPrefix(Account& account, const Charge& charge, int64_t sign) {
  Prefix& prefix = account.prefixes[charge.prefix_hash];
  if (prefix.tickets > 0 && prefix.begun == 0) account.waiting_blocks -= prefix.blocks;
  prefix.tickets += sign;
  if (charge.used_blocks > 0) prefix.begun += sign;
  prefix.blocks = std::max(prefix.blocks, charge.prefix_blocks);
  if (prefix.tickets == 0) {
    account.prefixes.erase(charge.prefix_hash);
  } else if (prefix.begun == 0) {
    account.waiting_blocks += prefix.blocks;
  }
}

int64_t Accounting::blocks_reserved(const WorkerName& name) const {
  const auto it = accounts_.find(name);
  return it == accounts_.end() ? 0 : it->second.reserved();
}

int64_t Accounting::blocks_free(const WorkerName& name) const {
  const auto it = accounts_.find(name);
  if (it == accounts_.end()) return 0;
  return std::clamp<int64_t>(it->second.capacity.kv_blocks - it->second.reserved(), 0,
                             it->second.capacity.kv_blocks);
}

size_t Accounting::ticket_count(const WorkerName& name) const {
  const auto it = accounts_.find(name);
  return it == accounts_.end() ? 0 : it->second.charges.size();
}

int64_t Accounting::blocks_charged() const {
  int64_t blocks = 0;
  for (const auto& [name, account] : accounts_) {
    blocks += account.growth_blocks + account.waiting_blocks;
  }
  return blocks;
}

}  // namespace lockstep::scheduler
