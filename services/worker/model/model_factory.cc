#include "services/worker/model/model_factory.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/worker/model/checkpoint.h"
#include "services/worker/model/memory_plan.h"
#include "services/worker/model/model_config.h"
#include "services/worker/model/null_executor.h"
#include "services/worker/model/random_model.h"
#include "services/worker/model/random_weights.h"
#include "services/worker/model/rank_team.h"
#include "services/worker/model/ranked_executor.h"
#include "services/worker/model/tensor_reader.h"
#include "services/worker/model/transformer.h"
#include "services/worker/model/transformer_executor.h"
#include "services/worker/model/weight_store.h"

namespace lockstep::worker {
namespace {

constexpr int kNullVocabulary = 32768;
constexpr int kNullContextTokens = 131072;
constexpr int kNullKvBlockTokens = 32;
constexpr int64_t kNullKvBytesPerToken = 1024;
constexpr char kStepAdvice[] = "lower chunk_tokens, sequences_max or context_tokens_max";
constexpr size_t kHostLogitsBytes = size_t{96} << 20;
constexpr size_t kDeviceLogitsBytes = size_t{1} << 30;

absl::Status Refuse(const char* option, int64_t value, const std::string& must) {
  return absl::InvalidArgumentError(absl::StrCat(option, " = ", value, ": must be ", must));
}

// Fills the defaults that depend on the model and checks every option against it.
absl::Status ResolveOptions(int positions, int vocabulary, int key_block_tokens,
                            ModelOptions* options) {
  if (options->context_tokens_max == 0) options->context_tokens_max = positions;
  if (options->vocabulary_sampled == 0) options->vocabulary_sampled = vocabulary;
  constexpr int kSizeMax = 1 << 20;
  const int split = options->split_kv_size;
  if (split <= 0 || split > kSizeMax || split % key_block_tokens != 0) {
    return Refuse("split_kv_size", split,
                  absl::StrCat("a positive multiple of the block of keys, ", key_block_tokens));
  }
  if (options->chunk_tokens <= 0 || options->chunk_tokens > kSizeMax ||
      options->chunk_tokens % split != 0) {
    return Refuse("chunk_tokens", options->chunk_tokens,
                  absl::StrCat("a positive multiple of split_kv_size, ", split));
  }
  if (options->sequences_max <= 0 || options->sequences_max > kSizeMax) {
    return Refuse("sequences_max", options->sequences_max, absl::StrCat("in [1, ", kSizeMax, "]"));
  }
  if (options->context_tokens_max < 1 || options->context_tokens_max > positions) {
    return Refuse("context_tokens_max", options->context_tokens_max,
                  absl::StrCat("in [1, ", positions, "], the model's range of positions"));
  }
  if (options->vocabulary_sampled < 1 || options->vocabulary_sampled > vocabulary) {
    return Refuse("vocabulary_sampled", options->vocabulary_sampled,
                  absl::StrCat("in [1, ", vocabulary, "], the rows of lm_head"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> BlocksIn(int64_t kv_bytes, int64_t bytes_per_block) {
  if (kv_bytes < bytes_per_block) {
    return Refuse("kv_bytes", kv_bytes,
                  absl::StrCat("at least one KV block, ", bytes_per_block, " bytes"));
  }
  return static_cast<int>(
      std::min<int64_t>(kv_bytes / bytes_per_block, std::numeric_limits<int>::max()));
}

// The pool that fits into `memory`, with its number of blocks.
absl::StatusOr<kernels::KvCacheShape> KvShape(const ModelConfig& own, const ModelOptions& options,
                                              const kernels::DeviceMemory& memory,
                                              kernels::KernelSet* kernels) {
  kernels::KvCacheShape shape = {.layers = own.layers,
                                 .kv_heads = own.kv_heads,
                                 .head_dim = own.head_dim,
                                 .blocks = 1,
                                 .block_tokens = kernels->traits().kv_block_tokens};
  // Only the backend knows what a block takes: ask a pool of one.
  LOCKSTEP_ASSIGN_OR_RETURN(const auto probe, kernels->CreateKvCache(shape));
  const auto block_bytes = static_cast<int64_t>(probe->bytes_per_block());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t kv_bytes,
      KvPoolBytes(options.kv_bytes, options.split_kv_size / shape.block_tokens * block_bytes,
                  memory));
  LOCKSTEP_ASSIGN_OR_RETURN(shape.blocks, BlocksIn(kv_bytes, block_bytes));
  return shape;
}

// How to have less in the pool, which has to leave room for the rest.
std::string_view KvAdvice(const ModelOptions& options) {
  return options.kv_bytes > 0 ? "lower kv_bytes" : "set kv_bytes to less than what is free";
}

// Of what is left when the weights and all that steps need are there.
absl::StatusOr<std::unique_ptr<kernels::KvCache>> CreateKv(const ModelConfig& own,
                                                           const ModelOptions& options,
                                                           kernels::KernelSet* kernels) {
  LOCKSTEP_ASSIGN_OR_RETURN(const kernels::DeviceMemory memory, kernels->Memory());
  LOCKSTEP_ASSIGN_OR_RETURN(const kernels::KvCacheShape shape,
                            KvShape(own, options, memory, kernels));
  auto cache = kernels->CreateKvCache(shape);
  if (!cache.ok()) return WithAdvice(cache.status(), KvAdvice(options));
  return cache;
}

// What can be known without weights, so that a setting is refused in no time, not when they are
// loaded: how the model is cut, and that at least the weights leave room for the KV pool.
absl::Status CheckBeforeWeights(const ModelConfig& config, const ModelOptions& options,
                                kernels::KernelSet* kernels) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReductionSegments(config, options.reduction_segments));
  LOCKSTEP_RETURN_IF_ERROR(CheckRanks(config, options.reduction_segments, options.part.ranks));
  LOCKSTEP_ASSIGN_OR_RETURN(kernels::DeviceMemory memory, kernels->Memory());
  LOCKSTEP_RETURN_IF_ERROR(CheckWeightsFit(config, options.part, memory));
  if (memory.total > 0) memory.free -= static_cast<size_t>(WeightBytes(config, options.part));
  return KvShape(PartOf(config, options.part), options, memory, kernels).status();
}

// The table covers the model's positions whatever context is served, so that workers which differ
// only in that agree.
absl::StatusOr<std::string> RopeDigest(const Transformer& transformer,
                                       kernels::KernelSet* kernels) {
  const kernels::Buffer& table = transformer.rope_table();
  std::vector<float> values(table.bytes() / sizeof(float));
  kernels->Download(table.as<void>(), values.size() * sizeof(float), values.data());
  LOCKSTEP_RETURN_IF_ERROR(kernels->Synchronize());
  base::Hasher hasher;
  hasher.Array(std::span<const float>(values));
  return hasher.Finish().ToString();
}

absl::StatusOr<LoadedModel> LoadNullModel(ModelOptions options) {
  LOCKSTEP_RETURN_IF_ERROR(
      ResolveOptions(kNullContextTokens, kNullVocabulary, kNullKvBlockTokens, &options));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t kv_bytes, KvPoolBytes(options.kv_bytes, 0, {}));
  LOCKSTEP_ASSIGN_OR_RETURN(const int blocks,
                            BlocksIn(kv_bytes, kNullKvBlockTokens * kNullKvBytesPerToken));
  LoadedModel model;
  model.executor =
      std::make_unique<NullExecutor>(NullExecutor::Options{.vocabulary = options.vocabulary_sampled,
                                                           .kv_blocks = blocks,
                                                           .kv_block_tokens = kNullKvBlockTokens});
  model.facts = {.name = "null",
                 .vocabulary = kNullVocabulary,
                 .context_tokens_max = options.context_tokens_max};
  base::Hasher hasher;
  model.weights_digest = hasher.Bytes(kNullModel).Finish();
  model.fingerprint = {.contract_version = 1,
                       .backend = "null",
                       .architecture = "null",
                       .reduction_segments = options.reduction_segments,
                       .split_kv_size = options.split_kv_size,
                       .kv_block_tokens = kNullKvBlockTokens,
                       .logits_type = "f32",
                       .kv_type = "f32",
                       .vocabulary_sampled = options.vocabulary_sampled,
                       .model_digest = model.weights_digest.ToString()};
  return model;
}

// Bounds of a step, from checked options.
TransformerOptions StepOptions(const ModelConfig& config, const ModelOptions& options,
                               size_t logits_bytes_default) {
  const int rows_max = options.chunk_tokens + options.sequences_max;
  const size_t logits_bytes =
      options.logits_bytes_max > 0 ? options.logits_bytes_max : logits_bytes_default;
  const size_t logits_row_bytes = static_cast<size_t>(config.vocabulary) * sizeof(float);
  const size_t logits_rows = std::max<size_t>(1, logits_bytes / logits_row_bytes);
  return {.rows_max = rows_max,
          .logits_rows_max =
              static_cast<int>(std::min<size_t>(logits_rows, static_cast<size_t>(rows_max))),
          .sequences_max = options.sequences_max,
          .context_tokens_max = options.context_tokens_max,
          .split_kv_size = options.split_kv_size};
}

// What a model is before its weights are read.
struct ModelSource {
  ModelConfig config;
  WeightSource* weights = nullptr;
  std::string name;
  std::string directory;
};

absl::StatusOr<LoadedModel> LoadFrom(const ModelSource& source, ModelOptions options,
                                     std::unique_ptr<kernels::KernelSet> kernels) {
  const kernels::BackendTraits traits = kernels->traits();
  const ModelConfig& config = source.config;
  LOCKSTEP_RETURN_IF_ERROR(
      ResolveOptions(config.positions, config.vocabulary, traits.key_block_tokens, &options));
  LOCKSTEP_RETURN_IF_ERROR(CheckBeforeWeights(config, options, kernels.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(const kernels::DeviceMemory memory, kernels->Memory());
  LOCKSTEP_ASSIGN_OR_RETURN(
      ModelWeights weights,
      LoadWeights(config, source.weights,
                  {.reduction_segments = options.reduction_segments, .part = options.part},
                  kernels.get()));

  LoadedModel model;
  model.weights_digest = weights.digest;
  TransformerExecutor::Parts parts;
  const ModelConfig own = PartOf(config, options.part);
  absl::StatusOr<std::unique_ptr<Transformer>> transformer = Transformer::Create(
      own, std::move(weights),
      StepOptions(config, options, memory.total == 0 ? kHostLogitsBytes : kDeviceLogitsBytes),
      kernels.get());
  if (!transformer.ok()) return WithAdvice(transformer.status(), kStepAdvice);
  parts.transformer = *std::move(transformer);
  if (kernels->shadows()) {
    // Before the pool takes what is left.
    auto timer = ModeTimer::Create(
        parts.transformer.get(), kernels.get(),
        {.sequences_max = options.sequences_max, .context_tokens_max = options.context_tokens_max});
    if (!timer.ok()) {
      return WithAdvice(timer.status(), "this is of shadows: leave shadow_every_steps out");
    }
    parts.mode_timer = *std::move(timer);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(parts.kv, CreateKv(own, options, kernels.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(std::string rope_digest, RopeDigest(*parts.transformer, kernels.get()));
  parts.kernels = std::move(kernels);
  absl::StatusOr<std::unique_ptr<StepExecutor>> executor = TransformerExecutor::Create(
      std::move(parts), {.sequences_max = options.sequences_max,
                         .context_tokens_max = options.context_tokens_max,
                         .vocabulary_sampled = options.vocabulary_sampled,
                         .captures = options.captures});
  if (!executor.ok()) return WithAdvice(executor.status(), KvAdvice(options));
  model.executor = *std::move(executor);
  model.facts = {.name = source.name,
                 .directory = source.directory,
                 .vocabulary = config.vocabulary,
                 .eos_ids = config.eos_ids,
                 .generation_config_json = config.generation_config_json,
                 .context_tokens_max = options.context_tokens_max};
  model.fingerprint = {.contract_version = traits.contract_version,
                       .deterministic = traits.deterministic,
                       .backend = traits.name,
                       .architecture = traits.architecture,
                       .reduction_segments = options.reduction_segments,
                       .split_kv_size = options.split_kv_size,
                       .kv_block_tokens = traits.key_block_tokens,
                       .rope_digest = std::move(rope_digest),
                       .logits_type = "f32",
                       .kv_type = std::string(Name(traits.kv)),
                       .vocabulary_sampled = options.vocabulary_sampled,
                       .model_digest = config.Digest().ToString()};
  return model;
}

absl::StatusOr<LoadedModel> LoadDirectory(const ModelOptions& options,
                                          std::unique_ptr<kernels::KernelSet> kernels) {
  LOCKSTEP_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(options.model));
  LOCKSTEP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(options.model));
  TensorReader reader(checkpoint);
  const std::filesystem::path path = std::filesystem::path(options.model).lexically_normal();
  return LoadFrom({.config = std::move(config),
                   .weights = &reader,
                   .name = (path.has_filename() ? path : path.parent_path()).filename().string(),
                   .directory = options.model},
                  options, std::move(kernels));
}

absl::StatusOr<LoadedModel> LoadRandom(const ModelOptions& options,
                                       std::unique_ptr<kernels::KernelSet> kernels) {
  LOCKSTEP_ASSIGN_OR_RETURN(RandomModel random, ParseRandomModel(options.model));
  RandomWeights weights(random.config, random.seed, kernels.get());
  return LoadFrom({.config = std::move(random.config), .weights = &weights, .name = random.shape},
                  options, std::move(kernels));
}

absl::StatusOr<ModelConfig> ConfigOf(const std::string& model) {
  if (NamesDirectory(model)) return LoadModelConfig(model);
  LOCKSTEP_ASSIGN_OR_RETURN(RandomModel random, ParseRandomModel(model));
  return std::move(random.config);
}

}  // namespace

absl::StatusOr<std::vector<kernels::LinearLayer>> LinearLayersOf(const ModelOptions& given) {
  ModelOptions options = given;
  if (options.model == kNullModel) {
    return absl::InvalidArgumentError("model: the null model has no linear layers");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(options.model));
  LOCKSTEP_RETURN_IF_ERROR(CheckReductionSegments(config, options.reduction_segments));
  LOCKSTEP_RETURN_IF_ERROR(
      ResolveOptions(config.positions, config.vocabulary, /*key_block_tokens=*/1, &options));
  const TransformerOptions step = StepOptions(config, options, kDeviceLogitsBytes);
  std::vector<kernels::LinearLayer> layers = {
      {.name = "qkv",
       .outputs = config.qkv_width(),
       .inputs = config.hidden,
       .bias = config.qkv_bias},
      {.name = "o",
       .outputs = config.hidden,
       .inputs = config.q_width(),
       .segments = options.reduction_segments},
      {.name = "gate_up", .outputs = 2 * config.ffn, .inputs = config.hidden},
      {.name = "down",
       .outputs = config.hidden,
       .inputs = config.ffn,
       .segments = options.reduction_segments},
      {.name = "lm_head",
       .outputs = config.vocabulary,
       .inputs = config.hidden,
       .output_f32 = true}};
  for (kernels::LinearLayer& layer : layers) {
    layer.rows_max = layer.output_f32 ? step.logits_rows_max : step.rows_max;
  }
  return layers;
}

absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      std::unique_ptr<kernels::KernelSet> kernels) {
  if (options.model == kNullModel) return LoadNullModel(options);
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        "model = \"\": must be a directory, \"null:\" or \"random:SHAPE\"");
  }
  if (kernels == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("model = \"", options.model, "\": needs a backend"));
  }
  if (!NamesDirectory(options.model)) return LoadRandom(options, std::move(kernels));
  return LoadDirectory(options, std::move(kernels));
}

absl::StatusOr<LoadedModel> LoadModelOnRanks(const ModelOptions& options,
                                             std::shared_ptr<kernels::CollectiveGroup> group,
                                             const MakeRankKernels& make_kernels) {
  const int ranks = group->ranks();
  auto team = std::make_unique<RankTeam>(ranks);
  std::vector<absl::StatusOr<LoadedModel>> loaded(static_cast<size_t>(ranks));
  team->Run([&](int rank) {
    ModelOptions own = options;
    own.part = {.rank = rank, .ranks = ranks};
    absl::StatusOr<std::unique_ptr<kernels::KernelSet>> kernels = make_kernels(rank);
    loaded[rank] = kernels.ok() ? LoadModel(own, *std::move(kernels)) : kernels.status();
    // The others may be waiting for this rank.
    if (!loaded[rank].ok()) group->Abandon(loaded[rank].status());
  });
  const auto failed = std::ranges::find_if(loaded, [](const auto& model) { return !model.ok(); });
  if (failed != loaded.end()) {
    // Of the rank that failed first, not of those that were let go.
    const absl::Status status = group->status();
    team->Run([&](int rank) { loaded[rank] = status; });
    return status;
  }
  LoadedModel model = *std::move(loaded.front());
  std::vector<std::unique_ptr<StepExecutor>> executors;
  executors.push_back(std::move(model.executor));
  for (size_t rank = 1; rank < loaded.size(); ++rank) {
    executors.push_back(std::move(loaded[rank]->executor));
  }
  model.executor =
      std::make_unique<RankedExecutor>(std::move(team), std::move(group), std::move(executors));
  return model;
}

}  // namespace lockstep::worker
