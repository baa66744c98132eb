#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "services/worker/engine/step_executor.h"

namespace lockstep::faults {

// Runs steps on the executor below, and lets a fault alter what goes in or what comes out.
class AlteringExecutor : public worker::StepExecutor {
 public:
  explicit AlteringExecutor(std::unique_ptr<worker::StepExecutor> inner)
      : inner_(std::move(inner)) {}

  absl::Status Launch(std::span<const worker::StepSequence> sequences) override {
    std::vector<worker::StepSequence> altered(sequences.begin(), sequences.end());
    AlterStep(&altered);
    return inner_->Launch(altered);
  }
  absl::Status Collect(std::vector<worker::StepSequenceResult>* results) override {
    const absl::Status status = inner_->Collect(results);
    if (status.ok()) AlterResults(results);
    return status;
  }
  bool asynchronous() const override { return inner_->asynchronous(); }
  uint64_t progress() const override { return inner_->progress(); }
  kernels::AuditCounts audit() const override { return inner_->audit(); }
  absl::Status health() const override { return inner_->health(); }
  int kv_block_count() const override { return inner_->kv_block_count(); }
  int kv_block_tokens() const override { return inner_->kv_block_tokens(); }
  void PoisonKvBlock(int block) override { inner_->PoisonKvBlock(block); }

 protected:
  // Spans put into the step must live until the next call.
  virtual void AlterStep(std::vector<worker::StepSequence>*) {}
  virtual void AlterResults(std::vector<worker::StepSequenceResult>*) {}

 private:
  const std::unique_ptr<worker::StepExecutor> inner_;
};

// Hooks that put an `Executor`, made from the one below and `arguments`, into each worker.
template <typename Executor, typename... Arguments>
auto WrapExecutorIn(Arguments... arguments) {
  return [=](std::unique_ptr<worker::StepExecutor> inner) -> std::unique_ptr<worker::StepExecutor> {
    return std::make_unique<Executor>(std::move(inner), arguments...);
  };
}

}  // namespace lockstep::faults
