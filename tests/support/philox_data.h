#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/philox.h"

// Deterministic test data: element i of a stream is a function of (stream, i) alone.
namespace lockstep::testing {

inline uint32_t PhiloxWord(uint32_t stream, uint64_t index) {
  return base::Philox4x32(
      {static_cast<uint32_t>(index / 4), static_cast<uint32_t>(index >> 34), 0, 0},
      {stream, 0x10C57E9u})[index % 4];
}

// Uniform in [-1, 1), 24 bits.
inline float PhiloxUniform(uint32_t stream, uint64_t index) {
  return static_cast<float>(static_cast<int32_t>(PhiloxWord(stream, index)) >> 8) * 0x1p-23f;
}

inline std::vector<float> UniformData(uint32_t stream, size_t count, float scale = 1) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = PhiloxUniform(stream, i) * scale;
  return data;
}

// Signs, and magnitudes from 2^-exponents to 2^exponents: sums that cancel, and whose bits depend
// on every detail of their order.
inline std::vector<float> WideData(uint32_t stream, size_t count, int exponents = 12) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) {
    const int exponent = static_cast<int>(PhiloxWord(stream ^ 0x5A5A5A5Au, i) %
                                          static_cast<uint32_t>(2 * exponents + 1)) -
                         exponents;
    data[i] = std::ldexp(PhiloxUniform(stream, i), exponent);
  }
  return data;
}

// Upper halves of fp32 values: bf16 by truncation.
inline std::vector<uint16_t> Bf16Data(const std::vector<float>& values) {
  std::vector<uint16_t> data;
  for (const float value : values) {
    data.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  }
  return data;
}

inline std::vector<float> FloatsOfBf16(const std::vector<uint16_t>& values) {
  std::vector<float> data;
  for (const uint16_t value : values) {
    data.push_back(std::bit_cast<float>(static_cast<uint32_t>(value) << 16));
  }
  return data;
}

}  // namespace lockstep::testing
