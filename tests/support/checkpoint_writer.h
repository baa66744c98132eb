#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::testing {

enum class StoredType { kBf16, kF32 };
// Qwen2 has biases on q, k and v and no norm of q and k heads; its config.json has no head_dim,
// which is then hidden / q_heads.
enum class Family { kQwen3, kQwen2 };

// A random model that is small enough for a test and harsh enough to exercise every path: q_norm
// and k_norm weights are about 4, so that attention is peaked, and a few channels of each norm are
// outliers. The same spec gives the same bytes everywhere.
struct TinyModel {
  uint64_t seed = 1;
  StoredType stored = StoredType::kBf16;
  int vocabulary = 320;
  int hidden = 64;
  int layers = 2;
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 32;
  int ffn = 128;
  int positions = 1024;
  bool tied = false;          // tie_word_embeddings
  bool store_lm_head = true;  // Untied, or a copy of the embedding when tied.
  int shards = 1;             // More than one: model-0000i-of-0000n.safetensors and an index.
  Family family = Family::kQwen3;
};

// A tensor by its checkpoint name; values are exact in the type that they are stored in.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// All tensors of the model, in name order.
std::vector<NamedTensor> MakeTensors(const TinyModel& model);
// config.json of the model.
std::string ConfigJson(const TinyModel& model);

// A safetensors file with these tensors, in this order.
std::string SafetensorsBytes(const std::vector<NamedTensor>& tensors, StoredType stored);
void WriteBytes(const std::string& path, const std::string& bytes);
// config.json, generation_config.json and safetensors; makes the directory.
void WriteCheckpoint(const std::string& directory, const TinyModel& model);

// An empty directory for one test, gone with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace lockstep::testing
