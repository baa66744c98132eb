#include "tests/support/checkpoint_writer.h"

#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/philox.h"

namespace lockstep::testing {
namespace {

// The top half of a float that a bf16 store keeps exactly.
float ToStored(float value, StoredType stored) {
  if (stored == StoredType::kF32) return value;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000u);
}

// Roughly normal: the sum of four uniforms from one Philox block, scaled to variance one.
float Normal(uint64_t key, uint32_t index) {
  const auto words = base::Philox4x32(
      {index, 0, 0, 0}, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  float sum = 0;
  for (const uint32_t word : words) sum += static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
  return sum * 1.7320508f;
}

class TensorMaker {
 public:
  explicit TensorMaker(const TinyModel& model) : model_(model) {}

  void Matrix(const std::string& name, int outputs, int inputs, float gain) {
    const float scale = gain / std::sqrt(static_cast<float>(inputs));
    Fill(name, {outputs, inputs}, [&](uint64_t key, uint32_t i) { return scale * Normal(key, i); });
  }
  // Around `center`, every 13th channel eight times that.
  void Norm(const std::string& name, int width, float center) {
    Fill(name, {width}, [&](uint64_t key, uint32_t i) {
      return center * (1 + 0.1f * Normal(key, i)) * (i % 13 == 5 ? 8 : 1);
    });
  }
  // Without outliers: a head's whole score would hang on them.
  void HeadNorm(const std::string& name, int width, float center) {
    Fill(name, {width},
         [&](uint64_t key, uint32_t i) { return center * (1 + 0.2f * Normal(key, i)); });
  }
  void Bias(const std::string& name, int width) {
    Fill(name, {width}, [](uint64_t key, uint32_t i) { return Normal(key, i); });
  }
  std::vector<NamedTensor> Take() { return std::move(tensors_); }

 private:
  template <typename Value>
  void Fill(const std::string& name, std::vector<int64_t> shape, Value value) {
    NamedTensor tensor{name, std::move(shape), {}};
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= extent;
    const uint64_t key = base::Hash64(name, model_.seed);
    tensor.values.reserve(count);
    for (int64_t i = 0; i < count; ++i) {
      tensor.values.push_back(ToStored(value(key, static_cast<uint32_t>(i)), model_.stored));
    }
    tensors_.push_back(std::move(tensor));
  }

  const TinyModel& model_;
  std::vector<NamedTensor> tensors_;
};

std::string HeaderEntry(const NamedTensor& tensor, StoredType stored, size_t* offset) {
  const size_t begin = *offset;
  *offset += tensor.values.size() * (stored == StoredType::kF32 ? 4 : 2);
  return absl::StrFormat(R"("%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]})", tensor.name,
                         stored == StoredType::kF32 ? "F32" : "BF16",
                         absl::StrJoin(tensor.shape, ","), begin, *offset);
}

void WriteShards(const std::string& directory, const TinyModel& model,
                 const std::vector<NamedTensor>& tensors) {
  std::string map;
  const size_t count = tensors.size();
  for (int shard = 0; shard < model.shards; ++shard) {
    const std::string file =
        absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, model.shards);
    const std::vector<NamedTensor> part(tensors.begin() + count * shard / model.shards,
                                        tensors.begin() + count * (shard + 1) / model.shards);
    for (const NamedTensor& tensor : part) {
      absl::StrAppend(&map, map.empty() ? "" : ",", "\"", tensor.name, "\":\"", file, "\"");
    }
    WriteBytes(directory + "/" + file, SafetensorsBytes(part, model.stored));
  }
  WriteBytes(directory + "/model.safetensors.index.json",
             absl::StrCat(R"({"metadata":{"total_size":0},"weight_map":{)", map, "}}"));
}

}  // namespace

std::vector<NamedTensor> MakeTensors(const TinyModel& model) {
  TensorMaker maker(model);
  const int q_width = model.q_heads * model.head_dim;
  const int kv_width = model.kv_heads * model.head_dim;
  maker.Matrix("model.embed_tokens.weight", model.vocabulary, model.hidden, 1);
  for (int layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    maker.Norm(prefix + "input_layernorm.weight", model.hidden, 1);
    maker.Matrix(prefix + "self_attn.q_proj.weight", q_width, model.hidden, 1);
    maker.Matrix(prefix + "self_attn.k_proj.weight", kv_width, model.hidden, 1);
    maker.Matrix(prefix + "self_attn.v_proj.weight", kv_width, model.hidden, 1);
    if (model.family == Family::kQwen3) {
      maker.HeadNorm(prefix + "self_attn.q_norm.weight", model.head_dim, 4);
      maker.HeadNorm(prefix + "self_attn.k_norm.weight", model.head_dim, 4);
    } else {
      maker.Bias(prefix + "self_attn.q_proj.bias", q_width);
      maker.Bias(prefix + "self_attn.k_proj.bias", kv_width);
      maker.Bias(prefix + "self_attn.v_proj.bias", kv_width);
    }
    maker.Matrix(prefix + "self_attn.o_proj.weight", model.hidden, q_width, 1);
    maker.Norm(prefix + "post_attention_layernorm.weight", model.hidden, 1);
    maker.Matrix(prefix + "mlp.gate_proj.weight", model.ffn, model.hidden, 1);
    maker.Matrix(prefix + "mlp.up_proj.weight", model.ffn, model.hidden, 1);
    maker.Matrix(prefix + "mlp.down_proj.weight", model.hidden, model.ffn, 1);
  }
  maker.Norm("model.norm.weight", model.hidden, 1);
  if (!model.tied) maker.Matrix("lm_head.weight", model.vocabulary, model.hidden, 2);
  std::vector<NamedTensor> tensors = maker.Take();
  if (model.tied && model.store_lm_head) {
    NamedTensor copy = tensors.front();
    copy.name = "lm_head.weight";
    tensors.push_back(std::move(copy));
  }
  if (!model.tied && !model.store_lm_head) tensors.pop_back();
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedTensor& a, const NamedTensor& b) { return a.name < b.name; });
  return tensors;
}

std::string ConfigJson(const TinyModel& model) {
  const bool qwen3 = model.family == Family::kQwen3;
  const std::string head_dim =
      qwen3 ? absl::StrCat("\"attention_bias\": false,\n  \"head_dim\": ", model.head_dim, ",\n  ")
            : "";
  return absl::StrFormat(R"({
  "architectures": ["%s"],
  "model_type": "%s",
  "attention_dropout": 0.0,
  "eos_token_id": 2,
  %s"hidden_act": "silu",
  "hidden_size": %d,
  "initializer_range": 0.02,
  "intermediate_size": %d,
  "max_position_embeddings": %d,
  "num_attention_heads": %d,
  "num_hidden_layers": %d,
  "num_key_value_heads": %d,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 10000.0,
  "tie_word_embeddings": %s,
  "torch_dtype": "%s",
  "use_sliding_window": false,
  "vocab_size": %d
}
)",
                         qwen3 ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM", qwen3 ? "qwen3" : "qwen2",
                         head_dim, model.hidden, model.ffn, model.positions, model.q_heads,
                         model.layers, model.kv_heads, model.tied ? "true" : "false",
                         model.stored == StoredType::kF32 ? "float32" : "bfloat16",
                         model.vocabulary);
}

std::string SafetensorsBytes(const std::vector<NamedTensor>& tensors, StoredType stored) {
  std::vector<std::string> entries;
  size_t data_bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    entries.push_back(HeaderEntry(tensor, stored, &data_bytes));
  }
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  header.append((8 - header.size() % 8) % 8, ' ');
  const uint64_t header_bytes = header.size();
  std::string bytes(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  bytes.reserve(bytes.size() + header.size() + data_bytes);
  bytes += header;
  for (const NamedTensor& tensor : tensors) {
    for (const float value : tensor.values) {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      const char* low = reinterpret_cast<const char*>(&bits);
      if (stored == StoredType::kF32) {
        bytes.append(low, 4);
      } else {
        bytes.append(low + 2, 2);
      }
    }
  }
  return bytes;
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  LOCKSTEP_CHECK(out.good()) << path;
}

void WriteCheckpoint(const std::string& directory, const TinyModel& model) {
  std::filesystem::create_directories(directory);
  WriteBytes(directory + "/config.json", ConfigJson(model));
  WriteBytes(directory + "/generation_config.json",
             R"({"do_sample": true, "eos_token_id": [2, 3], "temperature": 0.6, "top_k": 20})");
  const std::vector<NamedTensor> tensors = MakeTensors(model);
  if (model.shards > 1) {
    WriteShards(directory, model, tensors);
  } else {
    WriteBytes(directory + "/model.safetensors", SafetensorsBytes(tensors, model.stored));
  }
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
  LOCKSTEP_CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep::testing
