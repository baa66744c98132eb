#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace lockstep::kernels::cpu {

// The threads of one CPU backend. Work is cut into contiguous parts by arithmetic on indices, so
// that which thread does what never depends on timing; results do not depend on it either. The
// caller is thread 0 and works too. Idle threads spin for a few microseconds, because the next op
// usually follows at once, then sleep. One thread at a time may call Run or ParallelFor.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(thread) once for each thread in [0, threads) and returns after all have returned.
  void Run(absl::FunctionRef<void(int thread)> task);

  // Cuts [0, count) into one contiguous part per thread, none smaller than `grain`, and runs
  // body(begin, end, thread) for each. A count up to `grain` runs on the caller alone.
  void ParallelFor(int64_t count, int64_t grain,
                   absl::FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

 private:
  void WorkerLoop(int thread);

  // A new value of `round_` publishes task_ to the workers; `running_` counts those not yet done.
  std::atomic<uint32_t> round_{0};
  std::atomic<uint32_t> running_{0};
  std::atomic<bool> stopping_{false};
  const absl::FunctionRef<void(int)>* task_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace lockstep::kernels::cpu
