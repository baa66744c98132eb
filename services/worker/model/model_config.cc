#include "services/worker/model/model_config.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "services/worker/model/json_file.h"

namespace lockstep::worker {
namespace {

using Json = nlohmann::json;

constexpr char kConfigFile[] = "config.json";
constexpr char kGenerationConfigFile[] = "generation_config.json";
constexpr size_t kConfigBytesMax = size_t{1} << 20;
constexpr size_t kEosIdsMax = 64;
// Bumped when the list of fields below Digest changes its meaning.
constexpr uint64_t kDigestVersion = 1;

struct ArchitectureTraits {
  Architecture id;
  const char* name;  // In "architectures".
  const char* model_type;
  bool qk_norm;
  bool qkv_bias;
  bool head_dim_optional;  // hidden_size / num_attention_heads when absent.
};

constexpr ArchitectureTraits kArchitectures[] = {
    {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3", true, false, false},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2", false, true, true},
};

// A field that changes the computation: only the value that leaves it as it is here is accepted.
struct NeutralField {
  const char* field;
  const char* neutral;  // JSON text.
};

constexpr NeutralField kNeutralFields[] = {
    {"attention_bias", "false"}, {"mlp_bias", "false"},    {"use_sliding_window", "false"},
    {"hidden_act", "\"silu\""},  {"rope_scaling", "null"}, {"quantization_config", "null"},
};

absl::StatusOr<ArchitectureTraits> ReadArchitecture(const JsonFields& fields) {
  const Json* names = fields.Find("architectures");
  if (names == nullptr) return fields.Missing("architectures");
  if (!names->is_array() || names->size() != 1 || !names->front().is_string()) {
    return fields.Wrong("architectures", *names, "an array of one string");
  }
  for (const ArchitectureTraits& traits : kArchitectures) {
    if (names->front().get_ref<const std::string&>() != traits.name) continue;
    const Json* model_type = fields.Find("model_type");
    if (model_type != nullptr && *model_type != traits.model_type) {
      return fields.Wrong("model_type", *model_type, absl::StrCat("\"", traits.model_type, "\""));
    }
    return traits;
  }
  std::string known;
  for (const ArchitectureTraits& traits : kArchitectures) absl::StrAppend(&known, " ", traits.name);
  return fields.Wrong("architectures", names->front(), absl::StrCat("one of:", known));
}

absl::Status CheckNeutralFields(const JsonFields& fields) {
  for (const NeutralField& neutral : kNeutralFields) {
    const Json* value = fields.Find(neutral.field);
    if (value != nullptr && *value != Json::parse(neutral.neutral)) {
      return fields.Wrong(neutral.field, *value,
                          absl::StrCat(neutral.neutral, ", nothing else is supported"));
    }
  }
  const Json* layer_types = fields.Find("layer_types");
  if (layer_types == nullptr) return absl::OkStatus();
  if (!layer_types->is_array()) return fields.Wrong("layer_types", *layer_types, "an array");
  for (const Json& type : *layer_types) {
    if (type != "full_attention") return fields.Wrong("layer_types", type, "\"full_attention\"");
  }
  return absl::OkStatus();
}

// The stored type decides what is computed; the field only has to name one that can be read.
absl::Status CheckStoredType(const JsonFields& fields) {
  for (const char* field : {"torch_dtype", "dtype"}) {
    const Json* value = fields.Find(field);
    if (value != nullptr && *value != "bfloat16" && *value != "float32") {
      return fields.Wrong(field, *value, "\"bfloat16\" or \"float32\"");
    }
  }
  return absl::OkStatus();
}

// Older files hold rope_theta beside the other fields, newer ones in rope_parameters.
absl::StatusOr<double> ReadRopeTheta(const JsonFields& fields) {
  constexpr double kThetaMax = 1e12;
  const Json* parameters = fields.Find("rope_parameters");
  if (parameters == nullptr) return fields.Real("rope_theta", 1, kThetaMax);
  if (!parameters->is_object()) return fields.Wrong("rope_parameters", *parameters, "an object");
  const JsonFields inner(kConfigFile, *parameters);
  const Json* type = inner.Find("rope_type");
  if (type != nullptr && *type != "default") {
    return inner.Wrong("rope_type", *type, "\"default\", nothing else is supported");
  }
  const Json* partial = inner.Find("partial_rotary_factor");
  if (partial != nullptr && *partial != 1.0) {
    return inner.Wrong("partial_rotary_factor", *partial, "1, nothing else is supported");
  }
  return inner.Real("rope_theta", 1, kThetaMax);
}

absl::Status ReadEosIds(const std::string& file, const Json& object, int vocabulary,
                        std::vector<int32_t>* ids) {
  constexpr char kField[] = "eos_token_id";
  const JsonFields fields(file, object);
  const Json* value = fields.Find(kField);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t id, fields.Integer(kField, 0, vocabulary - 1));
    ids->push_back(static_cast<int32_t>(id));
    return absl::OkStatus();
  }
  if (value->size() > kEosIdsMax) {
    return fields.Wrong(kField, *value, absl::StrCat("at most ", kEosIdsMax, " ids"));
  }
  for (const Json& element : *value) {
    const Json one = {{kField, element}};
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t id,
                              JsonFields(file, one).Integer(kField, 0, vocabulary - 1));
    ids->push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

// What a request with use_model_defaults takes. Which values it may have, the gateway knows.
absl::Status CheckSamplingDefaults(const JsonFields& fields) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  for (const char* field : {"temperature", "top_p", "min_p", "repetition_penalty"}) {
    if (fields.Find(field) == nullptr) continue;
    LOCKSTEP_RETURN_IF_ERROR(fields.Real(field, -kLargest, kLargest).status());
  }
  if (fields.Find("top_k") != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(fields.Integer("top_k", INT64_MIN, INT64_MAX).status());
  }
  return fields.Boolean("do_sample", true).status();
}

struct SizeField {
  const char* field;
  int64_t most;
  int ModelConfig::*member;
};

// Upper limits are far above any model and low enough that no product of two of them, times four
// bytes, leaves int64, and no width of a row leaves int.
constexpr SizeField kSizeFields[] = {
    {"vocab_size", 1 << 22, &ModelConfig::vocabulary},
    {"hidden_size", 1 << 16, &ModelConfig::hidden},
    {"num_hidden_layers", 1024, &ModelConfig::layers},
    {"num_attention_heads", 1024, &ModelConfig::q_heads},
    {"num_key_value_heads", 1024, &ModelConfig::kv_heads},
    {"intermediate_size", 1 << 20, &ModelConfig::ffn},
    {"max_position_embeddings", 1 << 20, &ModelConfig::positions},
};

absl::Status ReadHeadDim(const JsonFields& fields, bool optional, ModelConfig* config) {
  constexpr int kHeadDimMax = 512;
  if (optional && fields.Find("head_dim") == nullptr) {
    config->head_dim = config->hidden / config->q_heads;
    if (config->hidden % config->q_heads != 0 || config->head_dim > kHeadDimMax) {
      return fields.Wrong("num_attention_heads", config->q_heads,
                          absl::StrCat("a divisor of hidden_size, ", config->hidden,
                                       ", into heads of at most ", kHeadDimMax));
    }
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t value, fields.Integer("head_dim", 1, kHeadDimMax));
    config->head_dim = static_cast<int>(value);
  }
  if (config->head_dim % 2 == 0) return absl::OkStatus();
  return fields.Wrong("head_dim", config->head_dim, "even, since rotary pairs halve it");
}

absl::Status ReadSizes(const JsonFields& fields, const ArchitectureTraits& traits,
                       ModelConfig* config) {
  for (const SizeField& size : kSizeFields) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t value, fields.Integer(size.field, 1, size.most));
    config->*size.member = static_cast<int>(value);
  }
  LOCKSTEP_RETURN_IF_ERROR(ReadHeadDim(fields, traits.head_dim_optional, config));
  if (config->q_heads % config->kv_heads != 0) {
    return fields.Wrong("num_key_value_heads", config->kv_heads,
                        absl::StrCat("a divisor of num_attention_heads, ", config->q_heads));
  }
  return absl::OkStatus();
}

}  // namespace

kernels::RopeParameters ModelConfig::Rope() const {
  return {.theta = rope_theta, .head_dim = head_dim, .positions = positions};
}

base::Digest128 ModelConfig::Digest() const {
  base::Hasher hasher;
  hasher.Number(kDigestVersion).Number(static_cast<uint64_t>(architecture));
  hasher.Number(qk_norm).Number(qkv_bias).Number(tied_embeddings);
  for (const SizeField& size : kSizeFields)
    hasher.Number(static_cast<uint64_t>(this->*size.member));
  hasher.Number(static_cast<uint64_t>(head_dim)).Number(std::bit_cast<uint64_t>(rope_theta));
  hasher.Number(std::bit_cast<uint32_t>(rms_norm_epsilon));
  hasher.Array(std::span<const int32_t>(eos_ids));
  return hasher.Finish();
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json,
                                             std::string_view generation_config_json) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(kConfigFile, config_json));
  const JsonFields fields(kConfigFile, object);
  LOCKSTEP_ASSIGN_OR_RETURN(const ArchitectureTraits traits, ReadArchitecture(fields));
  LOCKSTEP_RETURN_IF_ERROR(CheckNeutralFields(fields));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoredType(fields));

  ModelConfig config;
  config.architecture = traits.id;
  config.qk_norm = traits.qk_norm;
  config.qkv_bias = traits.qkv_bias;
  LOCKSTEP_RETURN_IF_ERROR(ReadSizes(fields, traits, &config));
  LOCKSTEP_ASSIGN_OR_RETURN(config.rope_theta, ReadRopeTheta(fields));
  LOCKSTEP_ASSIGN_OR_RETURN(const double epsilon, fields.Real("rms_norm_eps", 1e-12, 1));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  LOCKSTEP_ASSIGN_OR_RETURN(config.tied_embeddings, fields.Boolean("tie_word_embeddings", false));

  LOCKSTEP_RETURN_IF_ERROR(ReadEosIds(kConfigFile, object, config.vocabulary, &config.eos_ids));
  if (!generation_config_json.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Json generation,
                              ParseJsonObject(kGenerationConfigFile, generation_config_json));
    LOCKSTEP_RETURN_IF_ERROR(
        ReadEosIds(kGenerationConfigFile, generation, config.vocabulary, &config.eos_ids));
    LOCKSTEP_RETURN_IF_ERROR(CheckSamplingDefaults(JsonFields(kGenerationConfigFile, generation)));
    config.generation_config_json = std::string(generation_config_json);
  }
  std::sort(config.eos_ids.begin(), config.eos_ids.end());
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()),
                       config.eos_ids.end());
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& directory) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::string text,
      base::ReadRegularFile(absl::StrCat(directory, "/", kConfigFile), kConfigBytesMax));
  absl::StatusOr<std::string> generation =
      base::ReadRegularFile(absl::StrCat(directory, "/", kGenerationConfigFile), kConfigBytesMax);
  if (absl::IsNotFound(generation.status())) {
    generation = std::string();
  } else if (generation.ok() && generation->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, "/", kGenerationConfigFile, ": is empty"));
  }
  LOCKSTEP_RETURN_IF_ERROR(generation.status());
  return ParseModelConfig(text, *generation);
}

}  // namespace lockstep::worker
