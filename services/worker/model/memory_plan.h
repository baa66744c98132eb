#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/model/model_config.h"
#include "services/worker/model/rank_part.h"

// Who gets how much of a device's memory at start, and what to say when it is too little: by how
// much, and which setting would help. On a backend in the host's memory nothing is checked.
namespace lockstep::worker {

// Bytes of a rank's weights in bf16, as its device holds them.
int64_t WeightBytes(const ModelConfig& config, const RankPart& part = {});

// RESOURCE_EXHAUSTED when the rank's weights alone do not fit.
absl::Status CheckWeightsFit(const ModelConfig& config, const RankPart& part,
                             const kernels::DeviceMemory& memory);

// The KV pool's bytes: `asked`, or when that is 0 all that is free, but for a reserve that steps
// allocate from; 256 MiB in the host's memory. RESOURCE_EXHAUSTED when less than `bytes_min` would
// be left for it, or less than was asked for.
absl::StatusOr<int64_t> KvPoolBytes(int64_t asked, int64_t bytes_min,
                                    const kernels::DeviceMemory& memory);

// Adds `advice` to a status that tells of missing memory; any other is returned as it is.
absl::Status WithAdvice(const absl::Status& status, std::string_view advice);

}  // namespace lockstep::worker
