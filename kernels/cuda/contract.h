#pragma once

#include <cstdint>

// Constants of the contract on the CUDA backend. Every one of them decides bits.
namespace lockstep::kernels::cuda {

// Bumped by any change of a canonical order.
inline constexpr int kContractVersion = 1;

// Keys that share one update of the running maximum (docs/decisions/0014).
inline constexpr int kKvBlock = 128;
// Keys of a split that is merged as a whole; the default of `split_kv_size` (the same record).
inline constexpr int kSplitKvSize = 1024;

// Tokens of a page of the KV pool. It divides every block, and decides no bit.
inline constexpr int kPageTokens = 64;

// The scale of raw scores in the base-2 exponent: log2(e) / sqrt(head_dim), rounded once from
// double.
float AttentionScale(int head_dim);

}  // namespace lockstep::kernels::cuda
