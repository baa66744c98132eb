#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "kernels/api/kernel_set.h"

namespace lockstep::worker {

enum class Architecture { kQwen3, kQwen2 };

// What a Hugging Face directory says about a dense decoder, checked and normalised. An architecture
// is a name and the flags below; one transformer runs them all.
struct ModelConfig {
  Architecture architecture = Architecture::kQwen3;
  bool qk_norm = false;   // RMSNorm of each head of q and k.
  bool qkv_bias = false;  // q, k and v projections add a bias.

  int vocabulary = 0;  // Rows of the embedding and of lm_head.
  int hidden = 0;
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;  // Divides q_heads.
  int head_dim = 0;  // Even.
  int ffn = 0;
  int positions = 0;  // Context: prompt plus generated tokens.
  double rope_theta = 0;
  float rms_norm_epsilon = 0;
  bool tied_embeddings = false;  // lm_head is the embedding.

  std::vector<int32_t> eos_ids;        // Of config.json and generation_config.json, ascending.
  std::string generation_config_json;  // As stored, an object; empty when the file is absent.

  int q_width() const { return q_heads * head_dim; }
  int kv_width() const { return kv_heads * head_dim; }
  int qkv_width() const { return q_width() + 2 * kv_width(); }
  kernels::RopeParameters Rope() const;
  // Over every field that can change an answer; equal for files that differ in layout, field order
  // or fields without effect.
  base::Digest128 Digest() const;
};

// INVALID_ARGUMENT names file, field and value: of what is missing, of another type, out of range,
// or asks for a computation that this room does not have (an architecture, a rope scaling, a
// quantisation). Fields that Hugging Face's module does not read for this architecture are ignored,
// as it ignores them. What generation_config.json says about sampling must be numbers, of which the
// gateway knows the ranges. `generation_config_json` is empty when the file is absent.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json,
                                             std::string_view generation_config_json);

// Reads config.json, and generation_config.json if it is there. NOT_FOUND without a config.json.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory);

}  // namespace lockstep::worker
