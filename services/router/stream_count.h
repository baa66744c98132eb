#pragma once

#include <cstddef>

#include "common/base/mutex.h"

namespace lockstep::router {

// Streams that this process opened and whose OnClosed has not run yet: what they point to must
// outlive them. Thread-safe.
class StreamCount {
 public:
  void Add() {
    base::MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    base::MutexLock lock(&mutex_);
    --count_;
    changed_.NotifyAll();
  }
  void WaitNone() {
    base::MutexLock lock(&mutex_);
    while (count_ > 0) changed_.Wait(&mutex_);
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::router
