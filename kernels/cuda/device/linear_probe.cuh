#pragma once

#include <cstdint>

#include "kernels/cuda/linear/linear_kernels.h"

// Operands that show an order of additions, and the comparison of bits.
namespace lockstep::kernels::cuda {

// splitmix64's finaliser: every bit of the result depends on every bit of the argument.
__device__ __forceinline__ uint64_t MixBits(uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ __forceinline__ uint64_t HashAt(uint32_t stream, uint64_t row, uint64_t column) {
  return MixBits(MixBits(row << 32 | stream) ^ column);
}

// A bf16 value with random sign and mantissa and an exponent of `low` .. `high`.
__device__ __forceinline__ uint16_t WideBf16(uint64_t hash, int low, int high) {
  const int exponent = low + static_cast<int>((hash >> 16) % static_cast<uint64_t>(high - low + 1));
  return static_cast<uint16_t>((hash & 0x807F) | static_cast<uint64_t>(exponent + 127) << 7);
}

// Periods of the weight along its inputs; a segment has an even number of them.
inline constexpr int kAdversarialPeriods = 16;

static __device__ uint16_t AdversarialX(int row, int input, int inputs) {
  const int period = inputs / kAdversarialPeriods;
  const int turn = input / period;
  const uint64_t once =
      HashAt(1, static_cast<uint64_t>(row), static_cast<uint64_t>(input % period));
  const uint64_t each = HashAt(2, static_cast<uint64_t>(row), static_cast<uint64_t>(input));
  const uint16_t every_second = static_cast<uint16_t>(turn % 2 << 15);
  const uint16_t sign = static_cast<uint16_t>(each & 0x8000);
  switch (row % kAdversarialKinds) {
    case 0:
      return WideBf16(once, -12, 12) ^ every_second;
    case 1:
      return WideBf16(each, -12, 12);
    case 2:
      return WideBf16(once, -2, 2) ^ every_second;
    case 3:
      return sign;
    case 4:
      return static_cast<uint16_t>(sign | (each >> 20) % 256);
    case 5:
      return input == static_cast<int>(HashAt(3, static_cast<uint64_t>(row), 0) %
                                       static_cast<uint64_t>(inputs))
                 ? 0x3F80
                 : 0;
    case 6:
      return WideBf16(once, -20, 4) ^ every_second;
    default:
      return WideBf16(once, 80, 100) ^ every_second;
  }
}

static __global__ void FillAdversarialXKernel(uint16_t* x, int rows, int inputs, size_t stride) {
  const size_t count = static_cast<size_t>(rows) * inputs;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const int row = static_cast<int>(i / inputs);
    const int input = static_cast<int>(i % inputs);
    x[static_cast<size_t>(row) * stride + input] = AdversarialX(row, input, inputs);
  }
}

static __global__ void FillAdversarialWeightKernel(uint16_t* weight, int outputs, int inputs) {
  const size_t count = static_cast<size_t>(outputs) * inputs;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  const int period = inputs / kAdversarialPeriods;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const uint64_t hash = HashAt(4, i / inputs, i % inputs % period);
    const uint64_t kind = hash >> 58;
    // One in 16 is zero, one in 64 a denormal.
    weight[i] = kind < 4    ? static_cast<uint16_t>(hash & 0x8000)
                : kind == 4 ? static_cast<uint16_t>(hash & 0x807F)
                            : WideBf16(hash, -12, 12);
  }
}

static __global__ void FillUniformKernel(uint16_t* values, size_t count, uint32_t seed) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const int32_t bits = static_cast<int32_t>(HashAt(seed, 0, i));
    values[i] = static_cast<uint16_t>(__float_as_uint(static_cast<float>(bits) * 0x1p-31f) >> 16);
  }
}

template <typename Element>
__global__ void CountDifferencesKernel(const Element* a, const Element* b, size_t a_stride,
                                       size_t b_stride, int rows, int columns,
                                       unsigned long long* differing) {
  const size_t count = static_cast<size_t>(rows) * columns;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const size_t row = i / columns;
    const size_t column = i % columns;
    mine += a[row * a_stride + column] != b[row * b_stride + column];
  }
  // Integers: the order of these additions shows nowhere.
  if (mine != 0) atomicAdd(differing, mine);
}

}  // namespace lockstep::kernels::cuda
