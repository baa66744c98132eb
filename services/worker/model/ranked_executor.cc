#include "services/worker/model/ranked_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "services/worker/engine/logprob_block.h"

namespace lockstep::worker {
namespace {

bool SameResults(const std::vector<StepSequenceResult>& a,
                 const std::vector<StepSequenceResult>& b) {
  return std::ranges::equal(a, b, [](const StepSequenceResult& x, const StepSequenceResult& y) {
    return x.sampled_id == y.sampled_id && x.error == y.error && SameBits(x.sampled, y.sampled) &&
           SameBits(x.scored, y.scored);
  });
}

}  // namespace

RankedExecutor::RankedExecutor(std::unique_ptr<RankTeam> team,
                               std::shared_ptr<kernels::CollectiveGroup> group,
                               std::vector<std::unique_ptr<StepExecutor>> ranks)
    : team_(std::move(team)), group_(std::move(group)), ranks_(std::move(ranks)) {
  LOCKSTEP_CHECK_EQ(ranks_.size(), static_cast<size_t>(team_->ranks()));
  results_.resize(ranks_.size());
}

RankedExecutor::~RankedExecutor() {
  group_->Abandon(absl::CancelledError("the model is being unloaded"));
  team_->Run([this](int rank) { ranks_[rank].reset(); });
}

absl::Status RankedExecutor::Launch(std::span<const StepSequence> sequences) {
  return OnRanks([&](int rank) { return ranks_[rank]->Launch(sequences); });
}

absl::Status RankedExecutor::Collect(std::vector<StepSequenceResult>* results) {
  LOCKSTEP_RETURN_IF_ERROR(
      OnRanks([&](int rank) { return ranks_[rank]->Collect(&results_[rank]); }));
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    if (SameResults(results_[rank], results_[0])) continue;
    const absl::Status status = absl::DataLossError(
        absl::StrCat("rank ", rank, " of ", ranks_.size(), " came to another result than rank 0"));
    group_->Abandon(status);
    return status;
  }
  results->swap(results_[0]);
  return absl::OkStatus();
}

int RankedExecutor::kv_block_count() const {
  int blocks = ranks_.front()->kv_block_count();
  for (const auto& rank : ranks_) blocks = std::min(blocks, rank->kv_block_count());
  return blocks;
}

kernels::AuditCounts RankedExecutor::audit() const {
  kernels::AuditCounts counts;
  for (const auto& rank : ranks_) {
    counts.rows += rank->audit().rows;
    counts.mismatches += rank->audit().mismatches;
  }
  return counts;
}

void RankedExecutor::PoisonKvBlock(int block) {
  team_->Run([&](int rank) { ranks_[rank]->PoisonKvBlock(block); });
}

absl::Status RankedExecutor::OnRanks(absl::FunctionRef<absl::Status(int rank)> task) {
  std::vector<absl::Status> statuses(ranks_.size());
  team_->Run([&](int rank) {
    statuses[rank] = task(rank);
    if (!statuses[rank].ok()) group_->Abandon(statuses[rank]);
  });
  LOCKSTEP_RETURN_IF_ERROR(group_->status());
  for (const absl::Status& status : statuses) LOCKSTEP_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace lockstep::worker
