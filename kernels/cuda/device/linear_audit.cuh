#pragma once

#include <cstdint>

#include "kernels/cuda/device/linear_probe.cuh"
#include "kernels/cuda/device/primitive/kernel_overlap.cuh"
#include "kernels/cuda/linear/linear_audit_kernels.h"

// Copies rows of a linear layer for the audit, and compares them with what the reference made.
namespace lockstep::kernels::cuda {

inline constexpr int kAuditThreads = 256;
// Bytes of a row that one CTA copies: few enough that the widest row takes no longer than the rest.
inline constexpr size_t kAuditPieceBytes = size_t{16} << 10;

__device__ __forceinline__ void CopyAuditedPiece(const AuditedMatrix& m, size_t row, size_t slot) {
  const size_t begin = static_cast<size_t>(blockIdx.y) * kAuditPieceBytes;
  const size_t end = min(m.row_bytes, begin + kAuditPieceBytes);
  const uint8_t* from = static_cast<const uint8_t*>(m.matrix) + row * m.stride_bytes;
  uint8_t* to = static_cast<uint8_t*>(m.ring) + slot * m.ring_stride_bytes;
  for (size_t at = begin + threadIdx.x * sizeof(uint4); at < end;
       at += kAuditThreads * sizeof(uint4)) {
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
  }
}

// CTA (i, p) copies piece p of the i-th row. The rows are as far apart as can be, from one on that
// the clock picks.
static __global__ void CopyAuditedRowsKernel(AuditCopy copy) {
  WaitForKernels();
  AllowNextKernel();
  const uint64_t copies = copy.clock->copies;
  const uint64_t rows = static_cast<uint64_t>(copy.rows);
  const uint64_t apart = rows / static_cast<uint64_t>(copy.rows_copied);
  const size_t row = (MixBits(copies) + blockIdx.x * apart) % rows;
  const size_t slot =
      copies % static_cast<uint64_t>(copy.slots) * static_cast<uint64_t>(copy.rows_per_slot) +
      blockIdx.x;
  CopyAuditedPiece(copy.first, row, slot);
  if (copy.second.matrix != nullptr) CopyAuditedPiece(copy.second, row, slot);
  if (!copy.advances) return;
  // All threads have read the clock before it moves.
  __syncthreads();
  if (threadIdx.x != 0) return;
  const unsigned all = gridDim.x * gridDim.y;
  if (atomicAdd(&copy.clock->arrivals, 1u) != all - 1) return;
  copy.clock->arrivals = 0;
  copy.clock->copies = copies + 1;
}

// Whether two words of a row differ in bits that are not NaN on both sides.
template <typename Element>
__device__ __forceinline__ bool DifferInBits(Element a, Element b) {
  constexpr Element kInfinity =
      sizeof(Element) == 2 ? static_cast<Element>(0x7F80) : static_cast<Element>(0x7F800000);
  constexpr Element kMagnitude = static_cast<Element>(~Element{0}) >> 1;
  if (a == b) return false;
  return (a & kMagnitude) <= kInfinity || (b & kMagnitude) <= kInfinity;
}

// CTA (i, s) compares the i-th row of slot s.
template <typename Element>
__global__ void CompareAuditedRowsKernel(AuditComparison c) {
  const size_t offset =
      (static_cast<size_t>(blockIdx.y) * static_cast<size_t>(c.rows_per_slot) + blockIdx.x) *
      c.stride_bytes;
  const Element* a = reinterpret_cast<const Element*>(static_cast<const uint8_t*>(c.a) + offset);
  const Element* b = reinterpret_cast<const Element*>(static_cast<const uint8_t*>(c.b) + offset);
  bool differs = false;
  for (int i = static_cast<int>(threadIdx.x); i < c.columns; i += kAuditThreads) {
    differs |= DifferInBits(a[i], b[i]);
  }
  // Integers: the order of these additions shows nowhere.
  if (__syncthreads_or(differs) && threadIdx.x == 0) atomicAdd(&c.differing[blockIdx.y], 1u);
}

}  // namespace lockstep::kernels::cuda
