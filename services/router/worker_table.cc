#include "services/router/worker_table.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/hash.h"

namespace lockstep::router {
namespace {

// Incarnations are never used again, so old entries only guard against late snapshots.
constexpr size_t kLostRemembered = 1024;

}  // namespace

bool WorkerTable::ApplySnapshot(const std::vector<WorkerState>& workers, absl::Time now) {
  bool joined = false;
  for (auto& [key, row] : rows_) {
    if (row.listed) row.last_sign = std::max(row.last_sign, now);
    row.listed = false;
  }
  for (const WorkerState& state : workers) {
    if (lost_.contains(state.worker)) continue;
    auto [it, added] = rows_.try_emplace(state.worker);
    Row& row = it->second;
    if (added) {
      row.worker = state.worker;
      row.name_hash = base::Hash64(state.worker.id.value());
      row.idle_since = now;
      joined = true;
    }
    row.listed = true;
    row.address = state.address;
    row.lease = state.lease;
    row.draining = row.draining || state.draining;
    row.others_running = std::max<int64_t>(0, state.running_sequences - row.own_running);
  }
  Sweep();
  return joined;
}

void WorkerTable::Lose(const WorkerKey& worker) {
  rows_.erase(worker);
  if (lost_.insert(worker).second) lost_order_.push_back(worker);
  if (lost_order_.size() > kLostRemembered) {
    lost_.erase(lost_order_.front());
    lost_order_.pop_front();
  }
  usable_stale_ = true;
}

void WorkerTable::Sweep() {
  unlisted_count_ = 0;
  std::erase_if(rows_, [](const auto& entry) {
    const Row& row = entry.second;
    return !row.listed && row.own_admitting + row.own_running == 0 && row.stream == StreamId(0);
  });
  for (const auto& [key, row] : rows_) unlisted_count_ += row.listed ? 0 : 1;
  usable_stale_ = true;
}

void WorkerTable::MarkDraining(const WorkerKey& worker) {
  Row* row = Find(worker);
  if (row == nullptr || row->draining) return;
  row->draining = true;
  usable_stale_ = true;
}

void WorkerTable::StreamBroke(const WorkerKey& worker, absl::Time now) {
  Row* row = Find(worker);
  if (row == nullptr) return;
  row->stream = StreamId(0);
  absl::Duration pause = options_.suspect_initial;
  for (int i = 0; i < row->breaks && pause < options_.suspect_max; ++i) pause *= 2;
  row->suspect_until = now + std::min(pause, options_.suspect_max);
  ++row->breaks;
  usable_stale_ = true;
}

void WorkerTable::FrameCame(Row* row, absl::Time now) {
  row->breaks = 0;
  row->last_sign = now;
}

WorkerTable::Row* WorkerTable::Find(const WorkerKey& worker) {
  const auto it = rows_.find(worker);
  return it == rows_.end() ? nullptr : &it->second;
}

void WorkerTable::UpdateLoad(Row* row) {
  if (usable_stale_ || row->usable_index < 0) return;
  usable_[static_cast<size_t>(row->usable_index)].load = row->load();
}

void WorkerTable::AddAdmitting(const WorkerKey& worker, int64_t count) {
  Row* row = Find(worker);
  if (row == nullptr) return;
  row->own_admitting += count;
  LOCKSTEP_CHECK_GE(row->own_admitting, 0);
  UpdateLoad(row);
}

void WorkerTable::AddRunning(const WorkerKey& worker, int64_t count, absl::Time now) {
  Row* row = Find(worker);
  if (row == nullptr) return;
  row->own_running += count;
  LOCKSTEP_CHECK_GE(row->own_running, 0);
  if (row->own_running == 0) row->idle_since = now;
  UpdateLoad(row);
}

std::span<const WorkerLoad> WorkerTable::Usable(absl::Time now) {
  if (!usable_stale_ && now < next_suspect_end_) return usable_;
  usable_.clear();
  next_suspect_end_ = absl::InfiniteFuture();
  for (auto& [key, row] : rows_) {
    row.usable_index = -1;
    if (!row.listed || row.draining) continue;
    if (now < row.suspect_until) {
      next_suspect_end_ = std::min(next_suspect_end_, row.suspect_until);
      continue;
    }
    row.usable_index = static_cast<int>(usable_.size());
    usable_.push_back({&row.worker, row.name_hash, row.load()});
  }
  usable_stale_ = false;
  return usable_;
}

std::vector<WorkerKey> WorkerTable::SilentUnlisted(absl::Time now) const {
  std::vector<WorkerKey> silent;
  for (const auto& [key, row] : rows_) {
    if (!row.listed && now - row.last_sign >= options_.unlisted_silence_max) silent.push_back(key);
  }
  return silent;
}

std::vector<WorkerKey> WorkerTable::IdleSince(absl::Time before) const {
  std::vector<WorkerKey> idle;
  for (const auto& [key, row] : rows_) {
    if (row.stream != StreamId(0) && row.own_running == 0 && row.idle_since <= before) {
      idle.push_back(key);
    }
  }
  return idle;
}

size_t WorkerTable::listed_count() const {
  return static_cast<size_t>(
      std::count_if(rows_.begin(), rows_.end(), [](const auto& e) { return e.second.listed; }));
}

}  // namespace lockstep::router
