#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/model/model_config.h"
#include "services/worker/model/weight_store.h"

namespace lockstep::worker {

struct TransformerOptions {
  int rows_max = 0;         // Tokens in one step.
  int logits_rows_max = 0;  // Rows of one call of Logits.
  int sequences_max = 0;    // In one step.
  int context_tokens_max = 0;
  int split_kv_size = 0;
};

// The one decoder of every architecture, as a sequence of ops of a KernelSet. Its activations are
// allocated once, for the largest step. Ops are only enqueued; the caller synchronises. Used by one
// thread. Example:
//   transformer->Forward(shape, inputs, kv);
//   const float* logits = transformer->Logits(rows_on_device, row_count);
class Transformer {
  struct Private {};

 public:
  // RESOURCE_EXHAUSTED names the buffer that does not fit. Borrows `kernels`.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             ModelWeights weights,
                                                             const TransformerOptions& options,
                                                             kernels::KernelSet* kernels);

  // For Create.
  Transformer(Private, const ModelConfig& config, ModelWeights weights,
              const TransformerOptions& options, kernels::KernelSet* kernels);

  // Runs shape.rows tokens through all layers and writes their keys and values to `kv`. In a pool
  // of fewer layers, for measuring only, all that are left share the last.
  void Forward(const kernels::StepShape& shape, const kernels::StepInputs& inputs,
               kernels::KvCache* kv);
  // Logits [rows, vocabulary] of chosen rows of the last Forward; `source_rows` is in the backend's
  // memory, null for the first `rows` of them. The result lives until the next call.
  const float* Logits(const int32_t* source_rows, int rows);

  // A Forward that was captured has run again.
  void CountReplay() { layers_run_.fetch_add(config_.layers, std::memory_order_relaxed); }
  // Layers run since creation. Thread-safe.
  uint64_t layers_run() const { return layers_run_.load(std::memory_order_relaxed); }

  const ModelConfig& config() const { return config_; }
  const TransformerOptions& options() const { return options_; }
  const kernels::Buffer& rope_table() const { return rope_table_; }
  // Of all activations, fixed at creation.
  size_t activation_bytes() const;

 private:
  kernels::StepBounds Bounds() const;
  absl::Status AllocateActivations();
  void Attend(const kernels::StepShape& shape, const kernels::StepInputs& inputs, int layer,
              int kv_layer, kernels::KvCache* kv);
  void FeedForward(int rows, int layer);
  // The norm of the residual stream.
  kernels::RmsNormArgs NormArgs(const kernels::Buffer& weight, int rows) const;
  // Adds a layer of x to the residual stream, and normalises that for what comes next.
  void AddAndNorm(const kernels::LinearWeight& linear, const kernels::Buffer& x,
                  const kernels::Buffer& norm, int rows);

  ModelConfig config_;
  ModelWeights weights_;
  TransformerOptions options_;
  kernels::KernelSet* kernels_;
  std::atomic<uint64_t> layers_run_ = 0;
  kernels::Buffer rope_table_;  // [positions, head_dim]

  kernels::Buffer residual_;   // [rows_max, hidden]
  kernels::Buffer normed_;     // [rows_max, hidden]
  kernels::Buffer qkv_;        // [rows_max, qkv_width]
  kernels::Buffer attended_;   // [rows_max, q_width]
  kernels::Buffer gate_up_;    // [rows_max, 2 * ffn]
  kernels::Buffer activated_;  // [rows_max, ffn]
  kernels::Buffer head_rows_;  // [logits_rows_max, hidden]
  kernels::Buffer logits_;     // [logits_rows_max, vocabulary] fp32
};

}  // namespace lockstep::worker
