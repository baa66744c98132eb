#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "tests/faults/altering_executor.h"

namespace lockstep::testing {

// A device that never ends its step while `hangs` is set, and says nothing about it: the engine's
// thread stands still in it. Whoever clears the flag has to notify.
class HangingExecutor final : public faults::AlteringExecutor {
 public:
  HangingExecutor(std::unique_ptr<worker::StepExecutor> inner, const std::atomic<bool>* hangs)
      : AlteringExecutor(std::move(inner)), hangs_(hangs) {}

  absl::Status Collect(std::vector<worker::StepSequenceResult>* results) override {
    hangs_->wait(true);
    return AlteringExecutor::Collect(results);
  }

 private:
  const std::atomic<bool>* const hangs_;
};

}  // namespace lockstep::testing
