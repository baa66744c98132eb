#include "services/gateway/slot_pool.h"

#include <tuple>
#include <utility>

namespace lockstep::gateway {

bool SlotPool::Ask(std::shared_ptr<SlotOwner> owner) {
  base::MutexLock lock(&mutex_);
  Share& share = shares_[owner.get()];
  // Who waits already comes first, also while their slots are being given out.
  if (used_ < slots_ && waiting_count_ == 0) {
    ++used_;
    ++share.used;
    return true;
  }
  share.waiting = std::move(owner);
  ++waiting_count_;
  share.asked_number = ++asked_count_;
  return false;
}

void SlotPool::Give(const SlotOwner* owner) {
  base::MutexLock lock(&mutex_);
  const auto found = shares_.find(owner);
  if (found == shares_.end()) return;  // It has left, and its slots with it.
  --found->second.used;
  --used_;
  GrantLocked();
}

void SlotPool::Leave(const SlotOwner* owner) {
  base::MutexLock lock(&mutex_);
  const auto found = shares_.find(owner);
  if (found == shares_.end()) return;
  used_ -= found->second.used;
  if (found->second.waiting != nullptr) --waiting_count_;
  shares_.erase(found);
  GrantLocked();
}

void SlotPool::GrantLocked() {
  if (granting_) return;
  granting_ = true;
  while (std::shared_ptr<SlotOwner> next = TakeNextLocked()) {
    mutex_.Unlock();
    next->OnSlot();
    next.reset();
    mutex_.Lock();
  }
  granting_ = false;
}

std::shared_ptr<SlotOwner> SlotPool::TakeNextLocked() {
  if (used_ >= slots_ || waiting_count_ == 0) return nullptr;
  Share* best = nullptr;
  for (auto& [owner, share] : shares_) {
    if (share.waiting == nullptr) continue;
    if (best == nullptr ||
        std::tie(share.used, share.asked_number) < std::tie(best->used, best->asked_number)) {
      best = &share;
    }
  }
  ++used_;
  ++best->used;
  --waiting_count_;
  return std::exchange(best->waiting, nullptr);
}

int64_t SlotPool::used() const {
  base::MutexLock lock(&mutex_);
  return used_;
}

int64_t SlotPool::waiting() const {
  base::MutexLock lock(&mutex_);
  return waiting_count_;
}

}  // namespace lockstep::gateway
