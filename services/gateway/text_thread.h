#pragma once

#include <cstddef>
#include <deque>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "common/base/mutex.h"

namespace lockstep::gateway {

// The thread that long texts are tokenised on, one after the other: a megabyte takes a tenth of a
// second, which would delay all calls on the few callback threads. What waits here is memory that
// its request holds anyway. Thread-safe.
class TextThread {
 public:
  // At about 10 MB/s the longest short text takes as long as the rest of its call.
  static constexpr size_t kShortBytes = 4096;
  static bool IsShort(size_t bytes) { return bytes <= kShortBytes; }

  using Work = absl::AnyInvocable<void()>;

  TextThread();
  // Drops what waits.
  ~TextThread();
  TextThread(const TextThread&) = delete;
  TextThread& operator=(const TextThread&) = delete;

  void Post(Work work);

 private:
  void Run();

  base::Mutex mutex_;
  base::CondVar changed_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::gateway
