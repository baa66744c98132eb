#include "kernels/cpu/thread_pool.h"

#include <algorithm>

namespace lockstep::kernels::cpu {
namespace {

// About 20 microseconds: longer than the gap between two ops of a step, short enough that an idle
// worker gives its core away.
constexpr int kSpins = 500;

// Waits while `value` is `old`.
void WaitWhile(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(absl::FunctionRef<void(int thread)> task) {
  if (workers_.empty()) return task(0);
  task_ = &task;
  running_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  task(0);
  while (const uint32_t running = running_.load(std::memory_order_acquire)) {
    WaitWhile(running_, running);
  }
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             absl::FunctionRef<void(int64_t begin, int64_t end, int thread)> body) {
  if (count <= 0) return;
  const int64_t parts = std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, threads());
  if (parts == 1) return body(0, count, 0);
  Run([&](int thread) {
    if (thread >= parts) return;
    body(count * thread / parts, count * (thread + 1) / parts, thread);
  });
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen = 0;
  while (true) {
    WaitWhile(round_, seen);
    // The caller starts round r + 1 only after this thread has finished round r.
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    (*task_)(thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

}  // namespace lockstep::kernels::cpu
