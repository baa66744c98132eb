#pragma once

#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "common/base/bounded_queue.h"

namespace lockstep::worker {

// Runs control calls one after another on a thread of its own, "control": they wait for the engine
// loop, and gRPC's threads must not.
class ControlRunner {
 public:
  using Task = absl::AnyInvocable<void()>;

  ControlRunner() : tasks_(kTasksMax), thread_([this] { Run(); }) {}
  ~ControlRunner() {
    tasks_.Close();
    thread_.join();
  }
  // False when too many wait, or at the end.
  bool TryPost(Task task) { return tasks_.TryPush(std::move(task)); }

 private:
  static constexpr size_t kTasksMax = 64;
  void Run() {
    while (!tasks_.closed()) {
      if (std::optional<Task> task = tasks_.Pop(absl::Seconds(1))) (*task)();
    }
  }

  base::BoundedQueue<Task> tasks_;
  std::thread thread_;
};

}  // namespace lockstep::worker
