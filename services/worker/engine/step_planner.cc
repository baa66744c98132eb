#include "services/worker/engine/step_planner.h"

#include <algorithm>

namespace lockstep::worker {

int64_t NextCut(const CutRequest& request) {
  const int64_t reach = std::min(request.computed + request.budget, request.length);
  if (reach == request.length) return request.length;
  return std::max(request.computed, reach / request.split * request.split);
}

void StepPlanner::BeginStep() {
  sequences_left_ = limits_.sequences_max;
  tokens_left_ = limits_.chunk_tokens;
}

int64_t StepPlanner::Offer(int64_t computed, int64_t prefill_length) const {
  if (sequences_left_ == 0) return 0;
  if (computed >= prefill_length) return 1;
  return NextCut({.computed = computed,
                  .length = prefill_length,
                  .split = limits_.split_kv_size,
                  .budget = tokens_left_}) -
         computed;
}

int64_t StepPlanner::Take(int64_t computed, int64_t prefill_length) {
  const int64_t tokens = Offer(computed, prefill_length);
  if (tokens == 0) return 0;
  --sequences_left_;
  if (computed < prefill_length) tokens_left_ -= tokens;
  return tokens;
}

}  // namespace lockstep::worker
