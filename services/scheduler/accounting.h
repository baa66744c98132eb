#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// Blocks that cover `tokens`.
int64_t BlocksFor(int64_t tokens, int64_t kv_block_tokens);
// Blocks of the whole sequence, were it to generate all that it may.
int64_t BlocksWhole(const Demand& demand, int64_t kv_block_tokens);

// What each worker's KV is promised to. A sequence is charged an estimate when it is granted: the
// whole blocks of its prompt once per (worker, prefix hash), and what it needs beside them for its
// next min(new_tokens_max, horizon) tokens. Once the worker reports the sequence with blocks, its
// own count of free blocks is the truth for what exists, and only the expected growth is still
// charged. A worker without any ticket takes whatever fits it when empty, so no request waits for
// ever. Not thread-safe.
class Accounting {
 public:
  struct Options {
    int64_t horizon_tokens = 256;
    int64_t overcommit_percent = 100;  // Of the KV that exists.
  };
  explicit Accounting(Options options) : options_(options) {}

  void AddWorker(const WorkerName& name, const WorkerCapacity& capacity);
  // With everything charged to it.
  void RemoveWorker(const WorkerName& name);

  // False for a worker that is not known.
  bool Fits(const WorkerName& name, const Demand& demand) const;
  // The ticket is new. The worker is known.
  void Reserve(const WorkerName& name, base::TicketId ticket, const Demand& demand);
  // A ticket that another scheduler granted: `kv_blocks` are in use, growth is not known.
  void Adopt(const WorkerName& name, base::TicketId ticket, int64_t kv_blocks);
  // Unknown tickets and workers are ignored.
  void Release(const WorkerName& name, base::TicketId ticket);
  // A worker's own view. Tickets in `held` that are not charged here are seen in the free count.
  void ApplyTruth(const WorkerName& name, int64_t kv_blocks_free, std::span<const HeldTicket> held);

  // Promised blocks of one worker, used ones included; 0 when it is not known.
  int64_t blocks_reserved(const WorkerName& name) const;
  // Blocks not promised, in [0, kv_blocks].
  int64_t blocks_free(const WorkerName& name) const;
  // Tickets charged to one worker, and to all.
  size_t ticket_count(const WorkerName& name) const;
  size_t ticket_count() const { return ticket_count_; }
  // Of the estimates of all workers; 0 when nothing is charged.
  int64_t blocks_charged() const;

 private:
  struct Charge {
    uint64_t prefix_hash = 0;
    int64_t prefix_blocks = 0;  // Shared.
    int64_t own_blocks = 0;     // Beside them, by estimate.
    int64_t used_blocks = 0;    // By the worker's last word; 0 until it has begun.
  };
  struct Prefix {
    int64_t blocks = 0;
    int64_t tickets = 0;
    int64_t begun = 0;  // Of them; the blocks exist once one has begun.
  };
  struct Account {
    WorkerCapacity capacity;
    int64_t used_blocks = 0;     // By the worker's last word, less what ended since.
    int64_t growth_blocks = 0;   // Expected of what has begun.
    int64_t waiting_blocks = 0;  // Of what has not begun, prefixes included.
    absl::flat_hash_map<base::TicketId, Charge> charges;
    absl::flat_hash_map<uint64_t, Prefix> prefixes;
    int64_t reserved() const { return used_blocks + growth_blocks + waiting_blocks; }
  };

  Charge Estimate(const Account& account, const Demand& demand) const;
  // Adds (sign 1) or takes back (sign -1) what the charge stands for in the sums.
  static void Count(Account& account, const Charge& charge, int64_t sign);
  static void CountPrefix(Account& account, const Charge& charge, int64_t sign);

  const Options options_;
  absl::flat_hash_map<WorkerName, Account> accounts_;
  size_t ticket_count_ = 0;
};

}  // namespace lockstep::scheduler
