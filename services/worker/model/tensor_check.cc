#include "services/worker/model/tensor_check.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace lockstep::worker {
namespace {

// Exponent bits of every value in a 64-bit word, and what added to all-ones exponent bits carries
// into the sign bit. Bits below the exponent are masked off, so no lane carries into the next.
struct LaneMasks {
  uint64_t exponent;
  uint64_t carry;
  uint64_t sign;
};

constexpr LaneMasks kBf16Lanes = {0x7F807F807F807F80, 0x0080008000800080, 0x8000800080008000};
constexpr LaneMasks kF32Lanes = {0x7F8000007F800000, 0x0080000000800000, 0x8000000080000000};

uint64_t NonFiniteLanes(const std::byte* data, size_t bytes, const LaneMasks& masks) {
  uint64_t word = 0;
  std::memcpy(&word, data, bytes);
  return ((word & masks.exponent) + masks.carry) & masks.sign;
}

}  // namespace

std::optional<int64_t> FindNonFinite(std::span<const std::byte> bytes, kernels::DType dtype) {
  LOCKSTEP_CHECK(dtype == kernels::DType::kBf16 || dtype == kernels::DType::kF32);
  constexpr size_t kBlockBytes = 4096;
  const LaneMasks masks = dtype == kernels::DType::kBf16 ? kBf16Lanes : kF32Lanes;
  const size_t value_bytes = SizeOf(dtype);
  for (size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    const size_t end = std::min(begin + kBlockBytes, bytes.size());
    uint64_t found = 0;
    size_t at = begin;
    for (; at + sizeof(uint64_t) <= end; at += sizeof(uint64_t)) {
      found |= NonFiniteLanes(bytes.data() + at, sizeof(uint64_t), masks);
    }
    if (at < end) found |= NonFiniteLanes(bytes.data() + at, end - at, masks);
    if (found == 0) continue;
    for (at = begin; at < end; at += value_bytes) {
      if (NonFiniteLanes(bytes.data() + at, value_bytes, masks) != 0) {
        return static_cast<int64_t>(at / value_bytes);
      }
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::worker
