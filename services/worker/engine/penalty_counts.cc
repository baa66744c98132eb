#include "services/worker/engine/penalty_counts.h"

namespace lockstep::worker {
namespace {

bool HasPenalty(const SequenceParameters& parameters) {
  return parameters.repetition_penalty != 1 || parameters.frequency_penalty != 0 ||
         parameters.presence_penalty != 0;
}

}  // namespace

PenaltyCounts::PenaltyCounts(const SequenceParameters& parameters,
                             std::span<const int32_t> prompt_ids)
    : enabled_(HasPenalty(parameters)) {
  // Only the repetition penalty looks at the prompt.
  if (parameters.repetition_penalty == 1) return;
  for (const int32_t id : prompt_ids) Find(id).in_prompt = 1;
}

void PenaltyCounts::Add(int32_t id) {
  if (enabled_) ++Find(id).output_count;
}

kernels::IdCount& PenaltyCounts::Find(int32_t id) {
  const auto [it, inserted] = index_.try_emplace(id, counts_.size());
  if (inserted) counts_.push_back({.id = id});
  return counts_[it->second];
}

}  // namespace lockstep::worker
