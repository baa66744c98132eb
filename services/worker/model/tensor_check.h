#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/api/dtype.h"

namespace lockstep::worker {

// Index of the first NaN or infinity among the values, nullopt when all are finite. `bytes` may lie
// at any alignment and holds whole values of kF32 or kBf16. Reads memory at about its bandwidth.
std::optional<int64_t> FindNonFinite(std::span<const std::byte> bytes, kernels::DType dtype);

}  // namespace lockstep::worker
