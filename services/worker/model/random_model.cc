#include "services/worker/model/random_model.h"

#include <span>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/worker/model/model_name.h"

namespace lockstep::worker {
namespace {

struct Shape {
  const char* name;
  Architecture architecture;
  int vocabulary;
  int hidden;
  int layers;
  int q_heads;
  int kv_heads;
  int head_dim;
  int ffn;
  int positions;
  bool tied_embeddings;
};

// The published config.json of each, but for qwen3-tiny, which is small enough for tests and has
// every feature of the others.
constexpr Shape kShapes[] = {
    {"qwen3-tiny", Architecture::kQwen3, 1024, 256, 2, 8, 2, 64, 512, 8192, false},
    {"qwen3-0.6b", Architecture::kQwen3, 151936, 1024, 28, 16, 8, 128, 3072, 40960, true},
    {"qwen3-8b", Architecture::kQwen3, 151936, 4096, 36, 32, 8, 128, 12288, 40960, false},
    {"qwen3-32b", Architecture::kQwen3, 151936, 5120, 64, 64, 8, 128, 25600, 40960, false},
    {"qwen2.5-7b", Architecture::kQwen2, 152064, 3584, 28, 28, 4, 128, 18944, 32768, false},
};

ModelConfig ConfigOf(const Shape& shape) {
  ModelConfig config;
  config.architecture = shape.architecture;
  config.qk_norm = shape.architecture == Architecture::kQwen3;
  config.qkv_bias = shape.architecture == Architecture::kQwen2;
  config.vocabulary = shape.vocabulary;
  config.hidden = shape.hidden;
  config.layers = shape.layers;
  config.q_heads = shape.q_heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.ffn = shape.ffn;
  config.positions = shape.positions;
  config.rope_theta = 1e6;
  config.rms_norm_epsilon = 1e-6f;
  config.tied_embeddings = shape.tied_embeddings;
  return config;  // No eos: an answer of random weights ends by its length.
}

const Shape* FindShape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

std::string Known() {
  std::string names;
  for (const Shape& shape : kShapes) absl::StrAppend(&names, names.empty() ? "" : ", ", shape.name);
  return names;
}

}  // namespace

absl::StatusOr<RandomModel> ParseRandomModel(std::string_view model) {
  std::string_view rest = model;
  rest.remove_prefix(std::string_view(kRandomModel).size());
  RandomModel random;
  const size_t at = rest.find('@');
  random.shape = std::string(rest.substr(0, at));
  if (at != std::string_view::npos &&
      !absl::SimpleAtoi(std::string(rest.substr(at + 1)), &random.seed)) {
    return absl::InvalidArgumentError(absl::StrCat("model = \"", std::string(model), "\": \"",
                                                   std::string(rest.substr(at + 1)),
                                                   "\" is no seed in [0, 2^64)"));
  }
  const Shape* shape = FindShape(random.shape);
  if (shape == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("model = \"", std::string(model),
                                                   "\": unknown shape \"", random.shape,
                                                   "\"; known: ", Known()));
  }
  random.config = ConfigOf(*shape);
  return random;
}

}  // namespace lockstep::worker
