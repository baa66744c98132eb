#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/cli/cluster/cluster_layout.h"
#include "services/cli/generate_flags.h"
#include "services/cli/model_flag.h"
#include "services/cli/verbs.h"
#include "services/text/tokenizer.h"
#include "services/worker/model/checkpoint.h"
#include "services/worker/model/model_config.h"
#include "services/worker/model/model_name.h"
#include "services/worker/model/random_model.h"
#include "services/worker/model/rank_part.h"
#include "services/worker/model/weight_store.h"

namespace lockstep::cli {
namespace {

// Bytes of one stored key or value: fp32 on the CPU, bf16 on a GPU.
absl::StatusOr<int64_t> ElementBytes(const std::string& backend) {
  if (backend == "cpu") return 4;
  if (backend == "cuda") return 2;
  return absl::InvalidArgumentError(absl::StrCat("--backend: '", backend, "' is not cpu or cuda"));
}

absl::StatusOr<worker::ModelConfig> ConfigOf(const std::string& model) {
  if (model == worker::kNullModel) {
    return absl::InvalidArgumentError(absl::StrCat("--model: ", model, " has no shape"));
  }
  if (!model.starts_with(worker::kRandomModel)) return worker::LoadModelConfig(model);
  LOCKSTEP_ASSIGN_OR_RETURN(worker::RandomModel random, worker::ParseRandomModel(model));
  return std::move(random.config);
}

// What a download that was cut leaves behind: shards or a tokenizer that are absent, or short.
absl::Status CheckFiles(const std::string& model, const worker::ModelConfig& config) {
  if (!worker::NamesDirectory(model)) {
    return absl::InvalidArgumentError(absl::StrCat("--check_files: ", model, " has no files"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const worker::Checkpoint checkpoint, worker::Checkpoint::Open(model));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto tokenizer, text::Tokenizer::Load(model));
  if (tokenizer->vocab_size() > config.vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat(model, ": tokenizer.json has ids up to ", tokenizer->vocab_size() - 1,
                     ", config.json a vocab_size of ", config.vocabulary));
  }
  std::printf("files                 %zu tensors, a tokenizer of %d ids\n",
              checkpoint.tensors().size(), tokenizer->vocab_size());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunSize(const Arguments& arguments) {
  std::string model;
  std::string backend = "cpu";
  int64_t kv_mib = 256;
  int64_t tokens = 1024;
  int64_t tensor_parallel = 1;
  bool check_files = false;
  Flags flags("size", "Says how many tokens and sequences fit into a KV budget.");
  flags.Require("model", &model, "Hugging Face directory, or random:SHAPE");
  flags.Add("backend", &backend, "cpu or cuda");
  flags.Add("kv_mib", &kv_mib, {1, kKvMibMax}, "KV budget of each rank of a worker, MiB");
  flags.Add("tensor_parallel", &tensor_parallel, {1, kRanksMax}, "ranks of a worker");
  flags.Add("tokens", &tokens, {1, kTokensMax}, "prompt plus generated tokens of one sequence");
  flags.Add("check_files", &check_files,
            "refuse a directory whose weights or tokenizer are absent or cut short");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t element_bytes, ElementBytes(backend));
  LOCKSTEP_RETURN_IF_ERROR(CheckModel(model));
  LOCKSTEP_ASSIGN_OR_RETURN(const worker::ModelConfig whole, ConfigOf(model));
  if (check_files) LOCKSTEP_RETURN_IF_ERROR(CheckFiles(model, whole));
  // A rank owns whole segments, so there are as many at least.
  const int ranks = static_cast<int>(tensor_parallel);
  LOCKSTEP_RETURN_IF_ERROR(worker::CheckRanks(whole, ranks, ranks));
  LOCKSTEP_RETURN_IF_ERROR(worker::CheckReductionSegments(whole, ranks));
  const worker::ModelConfig config = worker::PartOf(whole, {.ranks = ranks});

  const int64_t per_token = 2 * int64_t{config.layers} * config.kv_width() * element_bytes;
  const int64_t fits = kv_mib * (int64_t{1} << 20) / per_token;
  std::printf(
      "bytes per token = 2 x layers x kv_heads of a rank x head_dim x element bytes\n"
      "                = 2 x %d x %d x %d x %lld = %lld\n"
      "tokens in %lld MiB     %lld\n"
      "sequences of %lld tokens   %lld\n"
      "longest sequence      %lld (the model's context is %d)\n",
      config.layers, config.kv_heads, config.head_dim, static_cast<long long>(element_bytes),
      static_cast<long long>(per_token), static_cast<long long>(kv_mib),
      static_cast<long long>(fits), static_cast<long long>(tokens),
      static_cast<long long>(fits / tokens),
      static_cast<long long>(std::min<int64_t>(fits, config.positions)), config.positions);
  return absl::OkStatus();
}

}  // namespace lockstep::cli
