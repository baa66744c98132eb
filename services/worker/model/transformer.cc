#include "services/worker/model/transformer.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace lockstep::worker {

Transformer::Transformer(Private, const ModelConfig& config, ModelWeights weights,
                         const TransformerOptions& options, kernels::KernelSet* kernels)
    : config_(config), weights_(std::move(weights)), options_(options), kernels_(kernels) {}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const ModelConfig& config,
                                                                 ModelWeights weights,
                                                                 const TransformerOptions& options,
                                                                 kernels::KernelSet* kernels) {
  auto transformer =
      std::make_unique<Transformer>(Private(), config, std::move(weights), options, kernels);
  LOCKSTEP_RETURN_IF_ERROR(kernels->Prepare(transformer->Bounds()));
  LOCKSTEP_RETURN_IF_ERROR(transformer->AllocateActivations());
  LOCKSTEP_ASSIGN_OR_RETURN(transformer->rope_table_, kernels->MakeRopeTable(config.Rope()));
  return transformer;
}

kernels::StepBounds Transformer::Bounds() const {
  return {.rows_max = options_.rows_max,
          .logits_rows_max = options_.logits_rows_max,
          .sequences_max = options_.sequences_max,
          .context_tokens_max = options_.context_tokens_max,
          .split_kv_size = options_.split_kv_size,
          .q_heads = config_.q_heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .lm_head = weights_.lm_head.get()};
}

absl::Status Transformer::AllocateActivations() {
  struct Plan {
    kernels::Buffer* buffer;
    int rows;
    int width;
    size_t element_bytes;
    const char* purpose;
  };
  const size_t activation = SizeOf(kernels_->traits().activation);
  const int rows = kernels_->PaddedRows(options_.rows_max);
  const int head_rows = kernels_->PaddedRows(options_.logits_rows_max);
  const Plan plans[] = {
      {&residual_, rows, config_.hidden, activation, "residual stream"},
      {&normed_, rows, config_.hidden, activation, "normalised rows"},
      {&qkv_, rows, config_.qkv_width(), activation, "q, k and v"},
      {&attended_, rows, config_.q_width(), activation, "attention output"},
      {&gate_up_, rows, 2 * config_.ffn, activation, "gate and up"},
      {&activated_, rows, config_.ffn, activation, "SwiGLU output"},
      {&head_rows_, head_rows, config_.hidden, activation, "rows for lm_head"},
      {&logits_, head_rows, config_.vocabulary, sizeof(float), "logits"},
  };
  for (const Plan& plan : plans) {
    const size_t bytes =
        static_cast<size_t>(plan.rows) * static_cast<size_t>(plan.width) * plan.element_bytes;
    LOCKSTEP_ASSIGN_OR_RETURN(*plan.buffer, kernels_->Allocate(bytes, plan.purpose));
  }
  return absl::OkStatus();
}

size_t Transformer::activation_bytes() const {
  size_t bytes = 0;
  for (const kernels::Buffer* buffer :
       {&residual_, &normed_, &qkv_, &attended_, &gate_up_, &activated_, &head_rows_, &logits_}) {
    bytes += buffer->bytes();
  }
  return bytes;
}

void Transformer::Forward(const kernels::StepShape& shape, const kernels::StepInputs& inputs,
                          kernels::KvCache* kv) {
  LOCKSTEP_CHECK_LE(shape.rows, options_.rows_max);
  const int kv_layers = kv->shape().layers;
  kernels_->Embedding({.table = weights_.embedding.as<void>(),
                       .table_dtype = weights_.embedding_type,
                       .width = config_.hidden,
                       .rows = shape.rows,
                       .ids = inputs.token_ids,
                       .drawn_ids = inputs.drawn_ids,
                       .y = residual_.as<void>()});
  kernels_->RmsNorm(NormArgs(weights_.layers.front().input_norm, shape.rows));
  for (int layer = 0; layer < config_.layers; ++layer) {
    Attend(shape, inputs, layer, std::min(layer, kv_layers - 1), kv);
    FeedForward(shape.rows, layer);
    layers_run_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Transformer::Attend(const kernels::StepShape& shape, const kernels::StepInputs& inputs,
                         int layer, int kv_layer, kernels::KvCache* kv) {
  const LayerWeights& weights = weights_.layers[layer];
  kernels_->Linear({.weight = weights.qkv.get(),
                    .rows = shape.rows,
                    .x = normed_.as<void>(),
                    .x_stride = static_cast<size_t>(config_.hidden),
                    .y = qkv_.as<void>(),
                    .y_stride = static_cast<size_t>(config_.qkv_width())});
  kernels_->QkvPrepare({.shape = shape,
                        .inputs = inputs,
                        .q_heads = config_.q_heads,
                        .kv_heads = config_.kv_heads,
                        .head_dim = config_.head_dim,
                        .q_norm = weights.q_norm.as<float>(),
                        .k_norm = weights.k_norm.as<float>(),
                        .epsilon = config_.rms_norm_epsilon,
                        .rope_table = rope_table_.as<float>(),
                        .qkv = qkv_.as<void>(),
                        .kv = kv,
                        .layer = kv_layer});
  kernels_->Attention({.shape = shape,
                       .inputs = inputs,
                       .q_heads = config_.q_heads,
                       .kv_heads = config_.kv_heads,
                       .head_dim = config_.head_dim,
                       .split_kv_size = options_.split_kv_size,
                       .qkv = qkv_.as<void>(),
                       .kv = kv,
                       .layer = kv_layer,
                       .y = attended_.as<void>()});
  AddAndNorm(*weights.output, attended_, weights.ffn_norm, shape.rows);
}

void Transformer::FeedForward(int rows, int layer) {
  const LayerWeights& weights = weights_.layers[layer];
  kernels_->Linear({.weight = weights.gate_up.get(),
                    .rows = rows,
                    .x = normed_.as<void>(),
                    .x_stride = static_cast<size_t>(config_.hidden),
                    .y = gate_up_.as<void>(),
                    .y_stride = static_cast<size_t>(2 * config_.ffn)});
  kernels_->SwiGlu({.width = config_.ffn,
                    .rows = rows,
                    .gate_up = gate_up_.as<void>(),
                    .y = activated_.as<void>()});
  const bool last = layer + 1 == config_.layers;
  AddAndNorm(*weights.down, activated_,
             last ? weights_.final_norm : weights_.layers[layer + 1].input_norm, rows);
}

const float* Transformer::Logits(const int32_t* source_rows, int rows) {
  LOCKSTEP_CHECK_LE(rows, options_.logits_rows_max);
  if (source_rows != nullptr) {
    kernels_->GatherRows({.width = config_.hidden,
                          .rows = rows,
                          .source_rows = source_rows,
                          .x = normed_.as<void>(),
                          .y = head_rows_.as<void>()});
  }
  const kernels::Buffer& x = source_rows != nullptr ? head_rows_ : normed_;
  kernels_->Linear({.weight = weights_.lm_head.get(),
                    .rows = rows,
                    .x = x.as<void>(),
                    .x_stride = static_cast<size_t>(config_.hidden),
                    .y = logits_.as<void>(),
                    .y_stride = static_cast<size_t>(config_.vocabulary),
                    .output_f32 = true});
  return logits_.as<float>();
}

kernels::RmsNormArgs Transformer::NormArgs(const kernels::Buffer& weight, int rows) const {
  const size_t stride = static_cast<size_t>(config_.hidden);
  return {.weight = weight.as<float>(),
          .epsilon = config_.rms_norm_epsilon,
          .width = config_.hidden,
          .rows = rows,
          .x = residual_.as<void>(),
          .x_stride = stride,
          .y = normed_.as<void>(),
          .y_stride = stride};
}

void Transformer::AddAndNorm(const kernels::LinearWeight& linear, const kernels::Buffer& x,
                             const kernels::Buffer& norm, int rows) {
  kernels_->LinearAndNorm({.weight = &linear,
                           .rows = rows,
                           .x = x.as<void>(),
                           .x_stride = static_cast<size_t>(linear.inputs()),
                           .y = residual_.as<void>(),
                           .y_stride = static_cast<size_t>(config_.hidden),
                           .accumulate = true},
                          NormArgs(norm, rows));
}

}  // namespace lockstep::worker
