#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/attention.h"
#include "kernels/cuda/attention_workspace.h"
#include "kernels/cuda/contract.h"
#include "kernels/cuda/kernel_path.h"
#include "kernels/cuda/kv_layout.h"

// The ops of the CUDA backend, one file each. They only enqueue on the stream: no synchronisation,
// no allocation, no reading of device memory, so that a graph can capture them. They return the
// launch's error; cudaErrorInvalidValue says that arguments break the op's shape contract.
namespace lockstep::kernels::cuda {

// How attention is scheduled. No field reaches a bit: tests run every choice against every other.
struct AttentionSchedule {
  KernelPath path = KernelPath::kSm90;
  int prefill_rows = 128;    // Packed rows of a prefill tile: 64 or 128. On kPortable always 64.
  bool split_decode = true;  // Off: sequences with few rows are prefill tiles too.
  // Off: in decode every split is a unit of its own, also where a sequence's splits could go one
  // after the other without being merged through memory.
  bool whole_sequences = true;
  int multiprocessors = 132;  // Of the device.
};

// One layer's attention. `args.kv` is not looked at: `pool` is that cache.
struct AttentionCall {
  AttentionArgs args;
  KvPool pool;
  AttentionLimits limits;
  AttentionWorkspace workspace;
  AttentionSchedule schedule;
  int kv_block = kKvBlock;  // 64 or 128. Part of the order, other than by measurement kKvBlock.
};

// Lists the step's work. Once per step, before the first Attention of it; limits, schedule and
// split_kv_size must be those of the calls that follow.
cudaError_t PlanAttention(const AttentionCall& call, cudaStream_t stream);

// y of all rows. Rows of padding, which come last, become zero. Placement-invariant on one GPU
// model.
cudaError_t Attention(const AttentionCall& call, cudaStream_t stream);

// The same bits by the shortest way to write the contract down; needs no plan. Slow.
cudaError_t AttentionReference(const AttentionCall& call, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
