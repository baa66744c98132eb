#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/hash.h"

namespace lockstep::gateway {

// Seed of sample `index` of a group: XXH3-64 of the index's 8 little-endian bytes, keyed by `seed`.
inline uint64_t SubSeed(uint64_t seed, uint64_t index) {
  return base::Hash64({reinterpret_cast<const char*>(&index), sizeof(index)}, seed);
}

// Seed of a request that gave none: never a silent constant.
inline uint64_t SeedOf(std::string_view request_id) { return base::Hash64(request_id); }

}  // namespace lockstep::gateway
