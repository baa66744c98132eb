#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/base/mutex.h"
#include "common/metrics/metric.h"

namespace lockstep::gateway {

// The thread for what would delay all calls on the few callback threads: tokenising long texts, of
// which a megabyte takes a tenth of a second, and building and serialising long answers, of which
// it takes some milliseconds. One after the other, and behind whatever else wants the core. What
// waits here is memory that its request holds anyway. Thread-safe.
class LongWorkThread {
 public:
  // At about 10 MB/s the longest short text takes as long as the rest of its call.
  static constexpr size_t kShortTextBytes = 4096;
  static bool IsShortText(size_t bytes) { return bytes <= kShortTextBytes; }
  // At about 500 MB/s this one does.
  static constexpr size_t kShortAnswerBytes = size_t{128} << 10;
  static bool IsShortAnswer(size_t bytes) { return bytes <= kShortAnswerBytes; }

  using Work = absl::AnyInvocable<void()>;

  // Counts in `posted` what it takes over.
  explicit LongWorkThread(metrics::Counter* posted);
  // Drops what waits.
  ~LongWorkThread();
  LongWorkThread(const LongWorkThread&) = delete;
  LongWorkThread& operator=(const LongWorkThread&) = delete;

  void Post(Work work);
  // Calls `work` here if it `is_short`.
  template <typename F>
  void RunOrPost(bool is_short, F&& work) {
    if (is_short) return std::forward<F>(work)();
    Post(std::forward<F>(work));
  }

 private:
  void Run();

  metrics::Counter* const posted_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::gateway
