#include "services/scheduler/control_round.h"

namespace lockstep::scheduler {

bool ControlRound::OnReply(const WorkerName& worker, const absl::StatusOr<ControlReply>& reply) {
  if (pending_.erase(worker) == 0) return false;
  if (!reply.ok()) {
    silent_.push_back(worker);
    return true;
  }
  aborted_sequences_ += reply->aborted_sequences;
  freed_blocks_ += reply->freed_blocks;
  known_requests_.insert(reply->known_requests.begin(), reply->known_requests.end());
  return false;
}

std::vector<WorkerName> ControlRound::TakeLate(absl::Time now) {
  if (now < deadline_ || pending_.empty()) return {};
  std::vector<WorkerName> late(pending_.begin(), pending_.end());
  pending_.clear();
  silent_.insert(silent_.end(), late.begin(), late.end());
  return late;
}

}  // namespace lockstep::scheduler
