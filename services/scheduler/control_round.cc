#include "services/scheduler/control_round.h"

namespace lockstep::scheduler {

void ControlRound::OnReply(const WorkerName& worker, const absl::StatusOr<ControlReply>& reply) {
  if (!pending_.contains(worker)) return;
  if (!reply.ok()) {
    failed_.insert(worker);
    return;
  }
  pending_.erase(worker);
  failed_.erase(worker);
  aborted_sequences_ += reply->aborted_sequences;
  freed_blocks_ += reply->freed_blocks;
  known_requests_.insert(reply->known_requests.begin(), reply->known_requests.end());
}

std::vector<WorkerName> ControlRound::TakeFailed() {
  std::vector<WorkerName> failed(failed_.begin(), failed_.end());
  failed_.clear();
  return failed;
}

void ControlRound::OnLost(const WorkerName& worker) {
  pending_.erase(worker);
  failed_.erase(worker);
}

std::vector<WorkerName> ControlRound::TakeLate(absl::Time now) {
  std::vector<WorkerName> late;
  for (const auto& [worker, deadline] : pending_) {
    if (deadline <= now) late.push_back(worker);
  }
  for (const WorkerName& worker : late) OnLost(worker);
  silent_.insert(silent_.end(), late.begin(), late.end());
  return late;
}

}  // namespace lockstep::scheduler
