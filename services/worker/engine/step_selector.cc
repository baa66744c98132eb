#include "services/worker/engine/step_selector.h"

#include <algorithm>
#include <span>

#include "common/base/check.h"

namespace lockstep::worker {
namespace {

// A sequence without credit for this long gives its blocks to ones that wait to start. Shorter gaps
// are the ordinary round trip of a grant, not worth a recomputation.
constexpr absl::Duration kStallGrace = absl::Seconds(1);

}  // namespace

void StepSelector::Add(HeldSequence* held) { waiting_.emplace(held->age, held); }

void StepSelector::Remove(HeldSequence* held) {
  held->kv.Release();
  running_.erase(held->age);
  waiting_.erase(held->age);
}

std::vector<StepSelector::Planned> StepSelector::Select(absl::Time now) {
  planner_.BeginStep();
  prefills_collected_ = false;
  NoteStalls(now);
  std::vector<Planned> planned;
  HeldSequence* const oldest = OldestRunnable();
  if (oldest == nullptr) return planned;
  // A copy, because preemption takes sequences out of running_.
  std::vector<HeldSequence*> running;
  for (const auto& [age, held] : running_) running.push_back(held);
  if (!oldest->kv.active()) StartWaiting(oldest, /*may_preempt=*/true, now, &planned);
  for (HeldSequence* held : running) {
    if (held->kv.active() && !held->sequence->stalled()) PlanRunning(held, &planned);
  }
  for (auto it = waiting_.begin(); it != waiting_.end() && !planner_.full();) {
    HeldSequence* const held = (it++)->second;
    if (held == oldest || held->sequence->stalled()) continue;
    if (!StartWaiting(held, /*may_preempt=*/false, now, &planned)) break;
  }
  return planned;
}

void StepSelector::NoteStalls(absl::Time now) {
  for (const auto& [age, held] : running_) {
    if (!held->sequence->stalled()) {
      held->stalled_since.reset();
    } else if (!held->stalled_since.has_value()) {
      held->stalled_since = now;
    }
  }
}

HeldSequence* StepSelector::OldestRunnable() const {
  HeldSequence* oldest = nullptr;
  for (const ByAge* sequences : {&running_, &waiting_}) {
    const auto it = std::ranges::find_if(*sequences, [](const auto& entry) {
      return !entry.second->sequence->stalled() && entry.second->sequence->can_step();
    });
    if (it == sequences->end()) continue;
    if (oldest == nullptr || it->first < oldest->age) oldest = it->second;
  }
  return oldest;
}

void StepSelector::PlanRunning(HeldSequence* held, std::vector<Planned>* planned) {
  const Sequence& sequence = *held->sequence;
  if (!sequence.can_step()) return;
  const int64_t tokens = planner_.Offer(sequence.computed(), sequence.prefill_length());
  if (tokens == 0) return;
  while (!held->kv.Reserve(sequence.computed() + tokens)) {
    if (!PreemptFor(held)) return;
  }
  planner_.Take(sequence.computed(), sequence.prefill_length());
  planned->push_back({.held = held, .tokens = tokens});
}

bool StepSelector::StartWaiting(HeldSequence* held, bool may_preempt, absl::Time now,
                                std::vector<Planned>* planned) {
  Sequence& sequence = *held->sequence;
  // It was preempted, and its last results are on their way.
  if (!sequence.can_step()) return false;
  if (held->prefix_wait_block.has_value() && StillWaitsForPrefix(held)) return true;
  const int64_t cached = held->kv.Match(sequence.ids(), sequence.first_row_wanted());
  if (WaitsForPrefix(held, cached / index_->block_tokens())) {
    held->kv.Release();
    return true;
  }
  const int64_t positions = std::min(sequence.length() + 1, sequence.positions_max());
  const int64_t missing = held->kv.Missing(positions) + (may_preempt ? 0 : running_count());
  bool fits = planner_.Offer(cached, sequence.prefill_length()) > 0;
  while (fits && index_->available_count() < missing) {
    fits = may_preempt ? PreemptFor(held) : PreemptLongStalled(now);
  }
  if (!fits) {
    held->kv.Release();
    return false;
  }
  LOCKSTEP_CHECK(held->kv.Reserve(positions));
  if (held->kv.shares()) {
    metrics_->prefix_lookup_tokens.Increment(static_cast<double>(sequence.length()));
    metrics_->prefix_hit_tokens.Increment(static_cast<double>(cached));
  }
  if (sequence.BeginPrefill(cached, now)) {
    metrics_->queue_seconds.Observe(now - sequence.start_time());
  }
  waiting_.erase(held->age);
  running_.emplace(held->age, held);
  held->prefix_wait_block.reset();
  if (prefills_collected_) NotePrefill(held);
  const int64_t tokens = planner_.Take(cached, sequence.prefill_length());
  planned->push_back({.held = held, .tokens = tokens});
  return true;
}

bool StepSelector::WaitsForPrefix(HeldSequence* held, int64_t matched_blocks) {
  if (!held->kv.shares() || matched_blocks >= UsefulBlocks(*held)) return false;
  if (!IsInWork(held, matched_blocks)) return false;
  if (!held->prefix_wait_block.has_value()) metrics_->prefix_waits.Increment();
  held->prefix_wait_block = matched_blocks;
  return true;
}

bool StepSelector::StillWaitsForPrefix(HeldSequence* held) {
  // Keys name whole chains: who works at a later block of this chain has done the ones before it.
  int64_t& block = *held->prefix_wait_block;
  for (const int64_t end = UsefulBlocks(*held); block < end; ++block) {
    if (IsInWork(held, block)) return true;
  }
  return false;
}

int64_t StepSelector::UsefulBlocks(const HeldSequence& held) const {
  return held.sequence->first_row_wanted() / index_->block_tokens();
}

bool StepSelector::IsInWork(HeldSequence* held, int64_t block) {
  if (!prefills_collected_) {
    blocks_in_work_.clear();
    prefills_collected_ = true;
    for (const auto& [age, running] : running_) NotePrefill(running);
  }
  return blocks_in_work_.contains(
      held->sequence->BlockKeys(held->kv.scope(), index_->block_tokens())[block]);
}

void StepSelector::NotePrefill(HeldSequence* held) {
  Sequence& sequence = *held->sequence;
  if (!held->kv.shares()) return;
  // What is in flight comes in any case.
  const int64_t end = sequence.stalled() ? std::min(sequence.computed(), sequence.prefill_length())
                                         : sequence.prefill_length();
  const int64_t block_tokens = index_->block_tokens();
  const auto keys = sequence.BlockKeys(held->kv.scope(), block_tokens);
  for (int64_t block = sequence.settled() / block_tokens; block < end / block_tokens; ++block) {
    blocks_in_work_.insert(keys[block]);
  }
}

bool StepSelector::PreemptFor(const HeldSequence* held) {
  // Younger ones come later in the plan, so a victim was never planned in this step.
  if (!running_.empty() && running_.rbegin()->first > held->age) {
    Preempt(running_.rbegin()->second);
    return true;
  }
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if (it->second == held || !it->second->sequence->stalled()) continue;
    Preempt(it->second);
    return true;
  }
  return false;
}

bool StepSelector::PreemptLongStalled(absl::Time now) {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    const HeldSequence& held = *it->second;
    if (!held.stalled_since.has_value() || now - *held.stalled_since < kStallGrace) continue;
    Preempt(it->second);
    return true;
  }
  return false;
}

void StepSelector::Preempt(HeldSequence* victim) {
  victim->kv.Release();
  victim->sequence->Preempt();
  victim->stalled_since.reset();
  metrics_->preemptions.Increment();
  running_.erase(victim->age);
  waiting_.emplace(victim->age, victim);
}

}  // namespace lockstep::worker
