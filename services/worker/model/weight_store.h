#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/model/model_config.h"
#include "services/worker/model/rank_part.h"
#include "services/worker/model/weight_source.h"

namespace lockstep::worker {

struct LayerWeights {
  kernels::Buffer input_norm;                      // [hidden]
  std::unique_ptr<kernels::LinearWeight> qkv;      // [qkv_width, hidden]: q, then k, then v.
  kernels::Buffer q_norm;                          // [head_dim]; null without qk_norm.
  kernels::Buffer k_norm;                          // [head_dim]; null without qk_norm.
  std::unique_ptr<kernels::LinearWeight> output;   // [hidden, q_width], row-parallel.
  kernels::Buffer ffn_norm;                        // [hidden]
  std::unique_ptr<kernels::LinearWeight> gate_up;  // [2 * ffn, hidden]: gate, then up.
  std::unique_ptr<kernels::LinearWeight> down;     // [hidden, ffn], row-parallel.
};

// The weights of one rank in its backend's memory; widths are the rank's own. Move-only; immutable
// after loading.
struct ModelWeights {
  kernels::Buffer embedding;  // [vocabulary, hidden] as stored.
  kernels::DType embedding_type = kernels::DType::kF32;
  std::vector<LayerWeights> layers;
  kernels::Buffer final_norm;                      // [hidden]
  std::unique_ptr<kernels::LinearWeight> lm_head;  // [vocabulary, hidden]
  // Of each tensor's name, type, shape and stored bytes, and of all of them in name order. How the
  // checkpoint is cut into files does not matter, nor does a stored copy of tied embeddings.
  std::map<std::string, base::Digest128> tensor_digests;
  base::Digest128 digest;
};

// Whether o_proj and down_proj can be summed in `reduction_segments` equal parts: a power of two
// that divides the q heads, and inputs that divide into multiples of 64 where it is more than one.
// INVALID_ARGUMENT names the layer and the numbers.
absl::Status CheckReductionSegments(const ModelConfig& config, int reduction_segments);

// How a model is cut, into sums and over ranks.
struct ModelLayout {
  int reduction_segments = 1;
  RankPart part;
};

// Packs one rank's part of the weights of `source` for `kernels`; every rank reads and checks all.
// INVALID_ARGUMENT names the tensor, and its file if it has one: of one that is missing, not part
// of the model, of another shape, of a type other than BF16 and F32, or with a NaN or an infinity
// inside. Pages are dropped as soon as a layer is packed, and read two layers ahead, so memory
// peaks at the packed weights and three layers of the file's pages.
absl::StatusOr<ModelWeights> LoadWeights(const ModelConfig& config, WeightSource* source,
                                         const ModelLayout& layout, kernels::KernelSet* kernels);

}  // namespace lockstep::worker
