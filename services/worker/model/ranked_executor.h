#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/api/collective.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/rank_team.h"

namespace lockstep::worker {

// The ranks of one model as one executor: every rank runs every step on its own thread and backend,
// with its part of weights and KV, and comes to the whole result. The first rank's is taken; one
// that differs from it in a bit means that a device computes wrongly, and ends the worker.
class RankedExecutor final : public StepExecutor {
 public:
  // One executor a rank, each made on its thread of `team`. They meet in `group`.
  RankedExecutor(std::unique_ptr<RankTeam> team, std::shared_ptr<kernels::CollectiveGroup> group,
                 std::vector<std::unique_ptr<StepExecutor>> ranks);
  ~RankedExecutor() override;

  absl::Status Launch(std::span<const StepSequence> sequences) override;
  absl::Status Collect(std::vector<StepSequenceResult>* results) override;
  bool asynchronous() const override { return ranks_.front()->asynchronous(); }
  uint64_t progress() const override { return ranks_.front()->progress(); }
  kernels::AuditCounts audit() const override;  // Of all ranks.
  absl::Status health() const override { return group_->status(); }
  // Of the rank with the smallest pool.
  int kv_block_count() const override;
  int kv_block_tokens() const override { return ranks_.front()->kv_block_tokens(); }
  void PoisonKvBlock(int block) override;

 private:
  // Runs `task` on all ranks; the first that fails lets the others go.
  absl::Status OnRanks(absl::FunctionRef<absl::Status(int rank)> task);

  const std::unique_ptr<RankTeam> team_;
  const std::shared_ptr<kernels::CollectiveGroup> group_;
  std::vector<std::unique_ptr<StepExecutor>> ranks_;
  std::vector<std::vector<StepSequenceResult>> results_;  // Of each rank.
};

}  // namespace lockstep::worker
