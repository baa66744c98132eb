#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/cuda/linear/linear_shape.h"

// Our own kernel of linear layers for Hopper: products, T, bias, rounding and residual in one
// launch, without scratch. Certified and timed like any library algorithm.
namespace lockstep::kernels::cuda {

// How work is cut; no field reaches a bit.
struct Sm90Tiling {
  int rows = 0;     // Of x in a tile.
  int outputs = 0;  // In a tile.
  int segments = 0;
  bool split = false;  // Segments run side by side in a cluster, else one after the other.
  int sharers = 1;     // CTAs of a cluster that load rows of x for each other.
};

std::span<const Sm90Tiling> Sm90Tilings();

// Whether the tiling can compute the shape, and is worth timing at that many rows.
bool Fits(const Sm90Tiling& tiling, const LinearShape& shape, int rows);

// Loads weights before the kernels that precede it have ended: those may not be what writes them.
// y = RNbf16(T(p) [+ bias]), or with `accumulate` y = RNbf16(y + that), or in fp32 the sums of one
// segment as they are. Only enqueues, reads and
// writes no row behind `rows`. cudaErrorInvalidValue when the tiling does not fit the shape.
struct LinearSm90Call {
  LinearShape shape;
  int tiling = 0;  // Index into Sm90Tilings().
  int rows = 0;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const void* x = nullptr;
  void* y = nullptr;
  bool accumulate = false;
};
cudaError_t LinearOnSm90(const LinearSm90Call& call, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
