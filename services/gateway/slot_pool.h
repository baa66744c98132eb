#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"

namespace lockstep::gateway {

// A stream that wants to start prompts.
class SlotOwner {
 public:
  virtual ~SlotOwner() = default;
  // It has the slot that it asked for. Called without a lock, on a thread that gave one back; never
  // from inside another OnSlot, so that owners which give theirs back at once are called in turn.
  virtual void OnSlot() = 0;
};

// The prompts that all GenerateMany streams together may have in work, shared out evenly: a slot
// that comes free goes to the stream that has the fewest of those that want one, so that a stream
// with thousands of prompts waiting cannot keep out another one with few. A stream that wants
// nothing holds nothing. Thread-safe; owners must not hold locks that their OnSlot takes.
class SlotPool {
 public:
  explicit SlotPool(int64_t slots) : slots_(slots) {}

  // One more slot for `owner`, which has no other wish open. True: it has it. False: OnSlot follows
  // unless it leaves before.
  bool Ask(std::shared_ptr<SlotOwner> owner);
  // One of its slots is free again.
  void Give(const SlotOwner* owner);
  // It is gone, with its wish and all of its slots.
  void Leave(const SlotOwner* owner);

  int64_t used() const;
  // Streams with a wish.
  int64_t waiting() const;

 private:
  struct Share {
    int64_t used = 0;
    std::shared_ptr<SlotOwner> waiting;  // Null: it wants nothing.
    uint64_t asked_number = 0;
  };

  // Gives away what is free, unless a caller further up or another thread is at it: that one sees
  // what came free meanwhile. Lets go of the lock for each OnSlot.
  void GrantLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who has the next slot; null when none is free or nobody waits.
  std::shared_ptr<SlotOwner> TakeNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t slots_;
  mutable base::Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waiting_count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool granting_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t asked_count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<const SlotOwner*, Share> shares_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::gateway
