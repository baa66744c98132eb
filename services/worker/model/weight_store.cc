#include "services/worker/model/weight_store.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kLmHead[] = "lm_head.weight";
constexpr int kSegmentMultiple = 64;
// Layers that are read while one is packed: so many that no reader waits for the largest tensor.
constexpr int kLayersAhead = 2;

using Shape = std::vector<int64_t>;

std::string PrefixOf(int layer) { return absl::StrCat("model.layers.", layer, "."); }

class WeightLoader {
 public:
  WeightLoader(const ModelConfig& config, WeightSource* source, const ModelLayout& layout,
               kernels::KernelSet* kernels)
      : config_(config), source_(source), layout_(layout), kernels_(kernels) {}

  absl::StatusOr<ModelWeights> Load() {
    ModelWeights weights;
    source_->ReadAhead(kEmbedding);
    if (!config_.tied_embeddings) source_->ReadAhead(kLmHead);
    for (int layer = 0; layer < std::min(kLayersAhead, config_.layers); ++layer) {
      source_->ReadAhead(PrefixOf(layer));
    }
    LOCKSTEP_RETURN_IF_ERROR(LoadEnds(&weights));
    LOCKSTEP_RETURN_IF_ERROR(DropPages());
    for (int layer = 0; layer < config_.layers; ++layer) {
      if (layer + kLayersAhead < config_.layers) {
        source_->ReadAhead(PrefixOf(layer + kLayersAhead));
      }
      const std::string prefix = PrefixOf(layer);
      LOCKSTEP_RETURN_IF_ERROR(LoadAttention(prefix, &weights.layers.emplace_back()));
      LOCKSTEP_RETURN_IF_ERROR(LoadFfn(prefix, &weights.layers.back()));
      LOCKSTEP_RETURN_IF_ERROR(DropPages());
    }
    LOCKSTEP_RETURN_IF_ERROR(source_->CheckAllTaken());
    weights.tensor_digests = source_->TakeDigests();
    base::Hasher hasher;
    for (const auto& [name, digest] : weights.tensor_digests) {
      hasher.Bytes(name).Number(digest.high).Number(digest.low);
    }
    weights.digest = hasher.Finish();
    return weights;
  }

 private:
  // Embedding, final norm and lm_head.
  absl::Status LoadEnds(ModelWeights* weights) {
    LOCKSTEP_ASSIGN_OR_RETURN(const kernels::HostTensor embedding,
                              source_->Take(kEmbedding, {config_.vocabulary, config_.hidden}));
    weights->embedding_type = embedding.dtype;
    LOCKSTEP_ASSIGN_OR_RETURN(weights->embedding, kernels_->UploadTable(embedding));
    LOCKSTEP_ASSIGN_OR_RETURN(weights->final_norm, Vector("model.norm.weight", config_.hidden));
    kernels::HostTensor head = embedding;
    if (config_.tied_embeddings) {
      if (source_->Has(kLmHead)) {
        LOCKSTEP_RETURN_IF_ERROR(source_->TakeCopy(kLmHead, kEmbedding));
      }
    } else if (!source_->Has(kLmHead)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", kLmHead,
                       "\" is missing, and config.json does not tie it to the embedding "
                       "(tie_word_embeddings is false)"));
    } else {
      LOCKSTEP_ASSIGN_OR_RETURN(head, source_->Take(kLmHead, {config_.vocabulary, config_.hidden}));
    }
    const Run own = VocabularyRun(config_.vocabulary, layout_.part);
    const kernels::HostTensor own_head = kernels::RowRange(head, own.begin, own.end);
    kernels::LinearLayout packing;
    if (shared()) {
      packing.gathered_outputs = config_.vocabulary;
      packing.first_output = static_cast<int>(own.begin);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(weights->lm_head, kernels_->PackLinear({&own_head, 1}, {}, packing));
    return absl::OkStatus();
  }

  absl::Status LoadAttention(const std::string& prefix, LayerWeights* layer) {
    LOCKSTEP_ASSIGN_OR_RETURN(layer->input_norm,
                              Vector(prefix + "input_layernorm.weight", config_.hidden));
    const std::string attention = prefix + "self_attn.";
    const std::pair<const char*, int> parts[] = {
        {"q_proj", config_.q_heads}, {"k_proj", config_.kv_heads}, {"v_proj", config_.kv_heads}};
    std::vector<kernels::HostTensor> qkv;
    std::vector<kernels::HostTensor> biases;
    for (const auto& [name, heads] : parts) {
      const int64_t width = int64_t{heads} * config_.head_dim;
      const Run own_heads = RunOf(heads, layout_.part);
      const Run own = {own_heads.begin * config_.head_dim, own_heads.end * config_.head_dim};
      LOCKSTEP_ASSIGN_OR_RETURN(
          const kernels::HostTensor weight,
          source_->Take(absl::StrCat(attention, name, ".weight"), {width, config_.hidden}));
      qkv.push_back(kernels::RowRange(weight, own.begin, own.end));
      if (!config_.qkv_bias) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(const kernels::HostTensor bias,
                                source_->Take(absl::StrCat(attention, name, ".bias"), {width}));
      biases.push_back(kernels::RowRange(bias, own.begin, own.end));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(layer->qkv, kernels_->PackLinear(qkv, biases, {}));
    if (config_.qk_norm) {
      LOCKSTEP_ASSIGN_OR_RETURN(layer->q_norm,
                                Vector(attention + "q_norm.weight", config_.head_dim));
      LOCKSTEP_ASSIGN_OR_RETURN(layer->k_norm,
                                Vector(attention + "k_norm.weight", config_.head_dim));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(layer->output,
                              RowParallel(attention + "o_proj.weight", config_.q_width()));
    return absl::OkStatus();
  }

  absl::Status LoadFfn(const std::string& prefix, LayerWeights* layer) {
    LOCKSTEP_ASSIGN_OR_RETURN(layer->ffn_norm,
                              Vector(prefix + "post_attention_layernorm.weight", config_.hidden));
    const Shape shape = {config_.ffn, config_.hidden};
    std::vector<kernels::HostTensor> gate_up(2);
    LOCKSTEP_ASSIGN_OR_RETURN(gate_up[0], source_->Take(prefix + "mlp.gate_proj.weight", shape));
    LOCKSTEP_ASSIGN_OR_RETURN(gate_up[1], source_->Take(prefix + "mlp.up_proj.weight", shape));
    const Run own = RunOf(config_.ffn, layout_.part);
    for (kernels::HostTensor& matrix : gate_up) {
      matrix = kernels::RowRange(matrix, own.begin, own.end);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(layer->gate_up, kernels_->PackLinear(gate_up, {}, {}));
    LOCKSTEP_ASSIGN_OR_RETURN(layer->down,
                              RowParallel(prefix + "mlp.down_proj.weight", config_.ffn));
    return absl::OkStatus();
  }

  absl::StatusOr<kernels::Buffer> Vector(const std::string& name, int width) {
    LOCKSTEP_ASSIGN_OR_RETURN(const kernels::HostTensor tensor, source_->Take(name, {width}));
    return kernels_->UploadVector(tensor);
  }

  absl::StatusOr<std::unique_ptr<kernels::LinearWeight>> RowParallel(const std::string& name,
                                                                     int inputs) {
    LOCKSTEP_ASSIGN_OR_RETURN(const kernels::HostTensor tensor,
                              source_->Take(name, {config_.hidden, inputs}));
    const Run run = RunOf(inputs, layout_.part);
    const kernels::HostTensor own = kernels::ColumnRange(tensor, run.begin, run.end);
    return kernels_->PackLinear(
        {&own, 1}, {},
        {.segments = layout_.reduction_segments / layout_.part.ranks, .reduced = shared()});
  }

  bool shared() const { return layout_.part.ranks > 1; }

  // A backend may still be copying from the mapped pages.
  absl::Status DropPages() {
    LOCKSTEP_RETURN_IF_ERROR(kernels_->Synchronize());
    source_->DropPages();
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  WeightSource* const source_;
  const ModelLayout layout_;
  kernels::KernelSet* const kernels_;
};

// One segment is a plain matmul and takes any number of inputs.
absl::Status CheckInputs(const char* layer, int inputs, int segments) {
  if (segments == 1) return absl::OkStatus();
  if (inputs % segments == 0 && inputs / segments % kSegmentMultiple == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reduction_segments = ", segments, ": the ", inputs, " inputs of ", layer,
                   " do not divide into multiples of ", kSegmentMultiple));
}

}  // namespace

absl::Status CheckReductionSegments(const ModelConfig& config, int reduction_segments) {
  if (reduction_segments < 1 || !std::has_single_bit(static_cast<unsigned>(reduction_segments))) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduction_segments = ", reduction_segments, ": must be a power of two"));
  }
  if (config.q_heads % reduction_segments != 0) {
    return absl::InvalidArgumentError(absl::StrCat("reduction_segments = ", reduction_segments,
                                                   ": the ", config.q_heads,
                                                   " q heads of o_proj do not divide by it"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckInputs("o_proj", config.q_width(), reduction_segments));
  return CheckInputs("down_proj", config.ffn, reduction_segments);
}

absl::StatusOr<ModelWeights> LoadWeights(const ModelConfig& config, WeightSource* source,
                                         const ModelLayout& layout, kernels::KernelSet* kernels) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReductionSegments(config, layout.reduction_segments));
  LOCKSTEP_RETURN_IF_ERROR(CheckRanks(config, layout.reduction_segments, layout.part.ranks));
  return WeightLoader(config, source, layout, kernels).Load();
}

}  // namespace lockstep::worker
