#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/api/sampling.h"
#include "services/worker/engine/sequence_start.h"

namespace lockstep::worker {

// How often each id occurred in one sequence, as the penalties need it; empty while no penalty is
// on. A function of prompt and output alone, so a resumed sequence has the same counts.
class PenaltyCounts {
 public:
  PenaltyCounts(const SequenceParameters& parameters, std::span<const int32_t> prompt_ids);

  // Whether counts are kept, and so change with every token.
  bool enabled() const { return enabled_; }
  // An output token.
  void Add(int32_t id);
  // Each id once, in order of first occurrence.
  std::span<const kernels::IdCount> counts() const { return counts_; }

 private:
  kernels::IdCount& Find(int32_t id);

  const bool enabled_;
  std::vector<kernels::IdCount> counts_;
  absl::flat_hash_map<int32_t, size_t> index_;
};

}  // namespace lockstep::worker
