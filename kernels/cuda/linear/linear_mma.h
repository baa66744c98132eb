#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/cuda/linear/linear_shape.h"

// Our own products of linear layers for any GPU since Ampere. Certified and timed like any library
// algorithm.
namespace lockstep::kernels::cuda {

// How work is cut; no field reaches a bit.
struct MmaTiling {
  int rows = 0;     // Of x in a tile.
  int outputs = 0;  // In a tile.
};

std::span<const MmaTiling> MmaTilings();

// Whether the tiling is worth timing for the shape at that many rows. At every number of rows one
// is, and every tiling can compute every supported shape.
bool Fits(const MmaTiling& tiling, const LinearShape& shape, int rows);

// The product of LinearReference. Only enqueues, reads and writes no row behind `rows`.
// cudaErrorInvalidValue when the shape is not supported.
struct LinearMmaCall {
  LinearShape shape;
  int tiling = 0;  // Index into MmaTilings().
  int rows = 0;
  const void* weight = nullptr;  // bf16 [outputs, inputs]
  const void* bias = nullptr;    // bf16 [outputs] or null; with one segment only.
  const void* x = nullptr;       // bf16 [rows, inputs]
  void* product = nullptr;
};
cudaError_t LinearByMma(const LinearMmaCall& call, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
