#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

// Weights drawn in bf16: an element is a function of the key and its index, in integers and three
// roundings, so that every backend and every number of threads draw the same.
//   element = RNbf16(RN(RN(DrawnInteger(key, index) * unit) + mean))
struct DrawArgs {
  uint64_t key = 0;
  float unit = 0;
  float mean = 0;
  size_t count = 0;
  void* values = nullptr;  // bf16 [count], in the backend's memory.
};

// The mixing function of SplitMix64 (Steele, Lea, Flood 2014).
constexpr uint64_t MixOfDraw(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Four uniform 16-bit numbers, added: nearly normal, mean 0, standard deviation 2^16 / sqrt(3).
constexpr int32_t DrawnInteger(uint64_t key, uint64_t index) {
  const uint64_t bits = MixOfDraw(key + index * 0x9e3779b97f4a7c15);
  const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                        (bits >> 32 & 0xffff) + (bits >> 48));
  return sum - 2 * 0xffff;
}

}  // namespace lockstep::kernels
