#include "services/worker/model/model_config.h"

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/checkpoint_writer.h"

namespace lockstep::worker {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TinyModel;

Json ValidConfig() { return Json::parse(testing::ConfigJson({})); }

absl::StatusOr<ModelConfig> Parse(const Json& config, const std::string& generation = "") {
  return ParseModelConfig(config.dump(), generation);
}

TEST(ModelConfigTest, ReadsAQwen3Config) {
  const absl::StatusOr<ModelConfig> config = Parse(ValidConfig());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kQwen3);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->vocabulary, 320);
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->q_heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->ffn, 128);
  EXPECT_EQ(config->positions, 1024);
  EXPECT_EQ(config->qkv_width(), 256);
  EXPECT_EQ(config->rope_theta, 10000);
  EXPECT_EQ(config->rms_norm_epsilon, 1e-6f);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
  EXPECT_EQ(config->Rope().positions, 1024);
}

TEST(ModelConfigTest, ReadsAQwen2Config) {
  const TinyModel tiny = {.head_dim = 16, .family = testing::Family::kQwen2};
  Json json = Json::parse(testing::ConfigJson(tiny));
  const absl::StatusOr<ModelConfig> config = Parse(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, Architecture::kQwen2);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_EQ(config->head_dim, 16);
  json["head_dim"] = 32;
  EXPECT_EQ(Parse(json)->head_dim, 32);
  json.erase("head_dim");
  json["num_attention_heads"] = 6;
  EXPECT_THAT(std::string(Parse(json).status().message()),
              AllOf(HasSubstr("num_attention_heads"), HasSubstr("6"), HasSubstr("64")));
}

TEST(ModelConfigTest, UnitesTheEosIdsOfBothFiles) {
  const std::string generation = R"({"eos_token_id": [9, 2, 5], "top_k": 20})";
  absl::StatusOr<ModelConfig> config = Parse(ValidConfig(), generation);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_ids, ElementsAre(2, 5, 9));
  EXPECT_EQ(config->generation_config_json, generation);

  Json without = ValidConfig();
  without["eos_token_id"] = nullptr;
  config = Parse(without);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_ids, ElementsAre());
}

TEST(ModelConfigTest, ReadsRopeThetaFromRopeParametersToo) {
  Json config = ValidConfig();
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  const absl::StatusOr<ModelConfig> parsed = Parse(config);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->rope_theta, 1e6);
}

TEST(ModelConfigTest, DigestSeesMeaningAndNotLayout) {
  const base::Digest128 digest = Parse(ValidConfig())->Digest();
  Json same = ValidConfig();
  same["use_cache"] = true;
  same["transformers_version"] = "5.0";
  same["torch_dtype"] = "float32";
  EXPECT_EQ(ParseModelConfig(same.dump(8), "")->Digest(), digest);
  const std::pair<const char*, Json> changes[] = {
      {"rms_norm_eps", 1e-5}, {"rope_theta", 10001.0},       {"num_hidden_layers", 3},
      {"vocab_size", 321},    {"tie_word_embeddings", true}, {"eos_token_id", 3}};
  for (const auto& [field, value] : changes) {
    Json changed = ValidConfig();
    changed[field] = value;
    ASSERT_TRUE(Parse(changed).ok()) << field;
    EXPECT_NE(Parse(changed)->Digest(), digest) << field;
  }
}

// Value by value: the refusal names the file, the field and the value.
struct Hostile {
  std::string name;
  std::string field;
  std::string value;  // JSON text.
  std::string named;  // What the message must show of the value.
};

void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.value; }

class HostileFieldTest : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileFieldTest, IsRefusedByName) {
  const Hostile& hostile = GetParam();
  Json marked = ValidConfig();
  marked[hostile.field] = "@here@";
  const std::string text = absl::StrReplaceAll(marked.dump(), {{"\"@here@\"", hostile.value}});
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(text, "");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr("config.json"), HasSubstr(hostile.field), HasSubstr(hostile.named)));
}

std::vector<Hostile> HostileSizes() {
  std::vector<Hostile> all;
  for (const char* field :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"}) {
    const Hostile values[] = {
        {"Zero", field, "0", "0"},
        {"Negative", field, "-5", "-5"},
        {"Huge", field, "4294967296", "4294967296"},
        {"BeyondInt64", field, "18446744073709551615", "18446744073709551615"},
        {"BeyondUint64", field, "1e300", "1e+300"},
        {"Fraction", field, "64.5", "64.5"},
        {"Float", field, "64.0", "64.0"},
        {"Text", field, "\"64\"", "\"64\""},
        {"Bool", field, "true", "true"},
        {"Array", field, "[64]", "an array"},
        {"Object", field, "{}", "an object"},
        {"Null", field, "null", "missing"},
        {"NaN", field, "NaN", "N"}};
    for (Hostile hostile : values) {
      hostile.name = absl::StrCat(field, "_", hostile.name);
      all.push_back(hostile);
    }
  }
  return all;
}

std::string NameOf(const ::testing::TestParamInfo<Hostile>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Sizes, HostileFieldTest, ::testing::ValuesIn(HostileSizes()), NameOf);
INSTANTIATE_TEST_SUITE_P(
    Others, HostileFieldTest,
    ::testing::Values(
        Hostile{"OddHeadDim", "head_dim", "33", "33"},
        Hostile{"KvHeadsDoNotDivide", "num_key_value_heads", "3", "3"},
        Hostile{"EpsilonNan", "rms_norm_eps", "NaN", "N"},
        Hostile{"EpsilonInfinite", "rms_norm_eps", "1e999", "1e999"},
        Hostile{"EpsilonZero", "rms_norm_eps", "0", "0"},
        Hostile{"EpsilonNegative", "rms_norm_eps", "-1e-6", "-1e-06"},
        Hostile{"EpsilonText", "rms_norm_eps", "\"1e-6\"", "\"1e-6\""},
        Hostile{"EpsilonMissing", "rms_norm_eps", "null", "missing"},
        Hostile{"ThetaZero", "rope_theta", "0", "0"},
        Hostile{"ThetaHuge", "rope_theta", "1e30", "1e+30"},
        Hostile{"ThetaMissing", "rope_theta", "null", "missing"},
        Hostile{"Architecture", "architectures", R"(["GPT2LMHeadModel"])", "GPT2LMHeadModel"},
        Hostile{"ArchitectureMissing", "architectures", "null", "missing"},
        Hostile{"ArchitectureText", "architectures", "\"Qwen3ForCausalLM\"", "Qwen3ForCausalLM"},
        Hostile{"TwoArchitectures", "architectures", R"(["Qwen3ForCausalLM", "B"])", "array of 2"},
        Hostile{"ModelType", "model_type", "\"llama\"", "llama"},
        Hostile{"HalfPrecision", "torch_dtype", "\"float16\"", "float16"},
        Hostile{"NewerDtype", "dtype", "\"float8_e4m3fn\"", "float8_e4m3fn"},
        Hostile{"AttentionBias", "attention_bias", "true", "true"},
        Hostile{"SlidingWindow", "use_sliding_window", "true", "true"},
        Hostile{"Activation", "hidden_act", "\"gelu\"", "gelu"},
        Hostile{"Quantised", "quantization_config", R"({"bits": 4})", "an object"},
        Hostile{"RopeScaling", "rope_scaling", R"({"rope_type": "yarn"})", "an object"},
        Hostile{"RopeParameters", "rope_parameters", "3", "3"},
        Hostile{"LayerTypes", "layer_types", R"(["sliding_attention"])", "sliding_attention"},
        Hostile{"TiedNumber", "tie_word_embeddings", "1", "1"},
        Hostile{"EosNegative", "eos_token_id", "-1", "-1"},
        Hostile{"EosBeyondVocabulary", "eos_token_id", "320", "320"},
        Hostile{"EosInList", "eos_token_id", "[2, 2147483648]", "2147483648"},
        Hostile{"EosText", "eos_token_id", "[\"2\"]", "\"2\""}),
    NameOf);

void ExpectRefused(const std::string& config, const std::string& generation,
                   const std::string& named) {
  const absl::Status status = ParseModelConfig(config, generation).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(named));
}

TEST(ModelConfigTest, RefusesWhatIsNoJsonObject) {
  ExpectRefused("", "", "config.json: not valid JSON");
  ExpectRefused("[]", "", "config.json: must be a JSON object");
  ExpectRefused("{\"hidden_size\": 64", "",
                "config.json: not valid JSON after field \"hidden_size\"");
  ExpectRefused("{\"a\": 1, \"a\": 2}", "", "config.json: field \"a\" occurs twice");
  ExpectRefused("{\"a\": \"\xff\"}", "", "config.json: not valid JSON");
  std::string deep = "{\"a\": ";
  deep += std::string(100000, '[') + std::string(100000, ']') + "}";
  ExpectRefused(deep, "", "config.json: nested deeper than 32");
}

TEST(ModelConfigTest, ChecksTheGenerationConfig) {
  const std::string config = testing::ConfigJson({});
  ExpectRefused(config, "[1]", "generation_config.json: must be a JSON object");
  ExpectRefused(config, "{\"top_k\": }", "generation_config.json: not valid JSON");
  ExpectRefused(config, R"({"eos_token_id": 320})",
                "generation_config.json: field \"eos_token_id\" is 320");
  ExpectRefused(config, R"({"temperature": "hot"})",
                "generation_config.json: field \"temperature\" is \"hot\"; must be a number");
  ExpectRefused(config, R"({"top_p": 1e300})", "generation_config.json: field \"top_p\" is 1e+300");
  ExpectRefused(config, R"({"min_p": []})", "generation_config.json: field \"min_p\"");
  ExpectRefused(config, R"({"repetition_penalty": true})",
                "generation_config.json: field \"repetition_penalty\" is true");
  ExpectRefused(config, R"({"top_k": 1e300})",
                "generation_config.json: field \"top_k\" is 1e+300; must be an integer");
  ExpectRefused(config, R"({"do_sample": 1})",
                "generation_config.json: field \"do_sample\" is 1; must be true or false");
  EXPECT_TRUE(
      ParseModelConfig(config, R"({"top_k": null, "temperature": 0, "do_sample": false})").ok());
}

TEST(ModelConfigTest, LoadsADirectory) {
  testing::TemporaryDirectory directory;
  EXPECT_EQ(LoadModelConfig(directory.path()).status().code(), absl::StatusCode::kNotFound);
  testing::WriteBytes(directory.File("config.json"), testing::ConfigJson({}));
  absl::StatusOr<ModelConfig> config = LoadModelConfig(directory.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->generation_config_json, "");
  testing::WriteBytes(directory.File("generation_config.json"), R"({"eos_token_id": [3]})");
  config = LoadModelConfig(directory.path());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_ids, ElementsAre(2, 3));
  testing::WriteBytes(directory.File("generation_config.json"), "");
  EXPECT_EQ(LoadModelConfig(directory.path()).status().code(), absl::StatusCode::kInvalidArgument);
  testing::WriteBytes(directory.File("config.json"), std::string((1 << 20) + 1, ' '));
  EXPECT_EQ(LoadModelConfig(directory.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::worker
