#include "services/gateway/slot_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lockstep::gateway {

bool SlotPool::Ask(std::shared_ptr<SlotOwner> owner) {
  base::MutexLock lock(&mutex_);
  Share& share = shares_[owner.get()];
  // When a slot is free nobody waits.
  if (used_ < slots_) {
    ++used_;
    ++share.used;
    return true;
  }
  share.waiting = std::move(owner);
  share.asked_number = ++asked_count_;
  return false;
}

void SlotPool::Give(const SlotOwner* owner) {
  Owners granted;
  {
    base::MutexLock lock(&mutex_);
    const auto found = shares_.find(owner);
    if (found == shares_.end()) return;  // It has left, and its slots with it.
    --found->second.used;
    --used_;
    granted = GrantLocked();
  }
  for (const auto& next : granted) next->OnSlot();
}

void SlotPool::Leave(const SlotOwner* owner) {
  Owners granted;
  {
    base::MutexLock lock(&mutex_);
    const auto found = shares_.find(owner);
    if (found == shares_.end()) return;
    used_ -= found->second.used;
    shares_.erase(found);
    granted = GrantLocked();
  }
  for (const auto& next : granted) next->OnSlot();
}

SlotPool::Owners SlotPool::GrantLocked() {
  Owners granted;
  while (used_ < slots_) {
    Share* best = nullptr;
    for (auto& [owner, share] : shares_) {
      if (share.waiting == nullptr) continue;
      if (best == nullptr ||
          std::tie(share.used, share.asked_number) < std::tie(best->used, best->asked_number)) {
        best = &share;
      }
    }
    if (best == nullptr) break;
    ++used_;
    ++best->used;
    granted.push_back(std::exchange(best->waiting, nullptr));
  }
  return granted;
}

int64_t SlotPool::used() const {
  base::MutexLock lock(&mutex_);
  return used_;
}

int64_t SlotPool::waiting() const {
  base::MutexLock lock(&mutex_);
  return std::count_if(shares_.begin(), shares_.end(),
                       [](const auto& entry) { return entry.second.waiting != nullptr; });
}

}  // namespace lockstep::gateway
