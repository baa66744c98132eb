#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/api/dtype.h"

namespace lockstep::kernels {

inline float FloatOfBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest even. `value` is finite.
constexpr uint16_t Bf16OfFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Element `index` of an array of kF32 or kBf16 that may lie at any address, as mapped checkpoints
// do.
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

}  // namespace lockstep::kernels
