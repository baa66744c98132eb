#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/api/dtype.h"

namespace lockstep::kernels::cpu {

inline float FloatOfBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Element `index` of an array that may lie at any address, as mapped checkpoints do.
inline float LoadElement(const void* data, DType dtype, size_t index) {
  if (dtype == DType::kBf16) {
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(data) + index * sizeof(bits), sizeof(bits));
    return FloatOfBf16(bits);
  }
  float value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(value), sizeof(value));
  return value;
}

}  // namespace lockstep::kernels::cpu
