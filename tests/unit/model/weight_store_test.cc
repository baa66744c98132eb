#include "services/worker/model/weight_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/tensor_check.h"
#include "services/worker/model/tensor_reader.h"
#include "tests/support/checkpoint_writer.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
using testing::MakeTensors;
using testing::NamedTensor;
using testing::StoredType;
using testing::TinyModel;

class WeightStoreTest : public ::testing::Test {
 protected:
  WeightStoreTest() : kernels_(*kernels::CreateKernelSet({.backend = "cpu", .threads = 1})) {}

  absl::StatusOr<ModelWeights> Load(const TinyModel& model, int segments = 1) {
    const std::string directory = directory_.File(std::to_string(++loads_));
    testing::WriteCheckpoint(directory, model);
    return LoadDirectory(directory, segments);
  }
  // The model's checkpoint with its tensors changed.
  absl::StatusOr<ModelWeights> LoadChanged(
      const TinyModel& model, const std::function<void(std::vector<NamedTensor>*)>& change) {
    const std::string directory = directory_.File(std::to_string(++loads_));
    testing::WriteCheckpoint(directory, model);
    std::vector<NamedTensor> tensors = MakeTensors(model);
    change(&tensors);
    testing::WriteBytes(directory + "/model.safetensors",
                        testing::SafetensorsBytes(tensors, model.stored));
    return LoadDirectory(directory, 1);
  }
  absl::StatusOr<ModelWeights> LoadDirectory(const std::string& directory, int segments) {
    const absl::StatusOr<ModelConfig> config = LoadModelConfig(directory);
    LOCKSTEP_CHECK(config.ok()) << config.status().ToString();
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(directory);
    if (!checkpoint.ok()) return checkpoint.status();
    TensorReader reader(*checkpoint);
    return LoadWeights(*config, &reader, {.reduction_segments = segments}, kernels_.get());
  }
  static NamedTensor& Find(std::vector<NamedTensor>* tensors, const std::string& name) {
    for (NamedTensor& tensor : *tensors) {
      if (tensor.name == name) return tensor;
    }
    LOCKSTEP_CHECK(false) << name;
    return tensors->front();
  }
  void ExpectRefused(const absl::StatusOr<ModelWeights>& weights,
                     const std::vector<std::string>& named) {
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& text : named) {
      EXPECT_THAT(std::string(weights.status().message()), HasSubstr(text));
    }
  }

  testing::TemporaryDirectory directory_;
  std::unique_ptr<kernels::KernelSet> kernels_;
  int loads_ = 0;
};

TEST_F(WeightStoreTest, StacksAndPacksEveryLayer) {
  const auto weights = Load({});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(weights->layers.size(), size_t{2});
  EXPECT_EQ(weights->layers[1].qkv->outputs(), 256);
  EXPECT_EQ(weights->layers[1].gate_up->outputs(), 256);
  EXPECT_EQ(weights->layers[1].down->inputs(), 128);
  EXPECT_EQ(weights->lm_head->outputs(), 320);
  EXPECT_EQ(weights->embedding_type, kernels::DType::kBf16);
  EXPECT_NE(weights->layers[0].q_norm.as<float>(), nullptr);
  EXPECT_EQ(weights->tensor_digests.size(), size_t{3 + 2 * 11});
}

TEST_F(WeightStoreTest, DigestIsOfTheTensorsAndNotOfTheFiles) {
  const base::Digest128 single = Load({})->digest;
  EXPECT_EQ(Load({.shards = 3})->digest, single);
  EXPECT_NE(Load({.seed = 2})->digest, single);
  EXPECT_NE(Load({.stored = StoredType::kF32})->digest, single);
  const auto reversed = LoadChanged({}, [](std::vector<NamedTensor>* tensors) {
    std::reverse(tensors->begin(), tensors->end());
  });
  ASSERT_TRUE(reversed.ok()) << reversed.status();
  EXPECT_EQ(reversed->digest, single);
}

TEST_F(WeightStoreTest, OneFlippedBitAnywhereChangesTheDigest) {
  const base::Digest128 digest = Load({})->digest;
  for (const NamedTensor& tensor : MakeTensors({})) {
    const auto flipped = LoadChanged({}, [&tensor](std::vector<NamedTensor>* tensors) {
      float& last = Find(tensors, tensor.name).values.back();
      last = std::bit_cast<float>(std::bit_cast<uint32_t>(last) ^ 0x00010000u);
    });
    ASSERT_TRUE(flipped.ok()) << flipped.status();
    EXPECT_NE(flipped->digest, digest) << tensor.name;
  }
}

TEST_F(WeightStoreTest, TiedEmbeddingsNeedNoLmHead) {
  const auto without = Load({.tied = true, .store_lm_head = false});
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->lm_head->outputs(), 320);
  const auto with = Load({.tied = true, .store_lm_head = true});
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->digest, without->digest);
}

TEST_F(WeightStoreTest, RefusesAnLmHeadThatDiffersFromTheTiedEmbedding) {
  ExpectRefused(LoadChanged({.tied = true},
                            [](std::vector<NamedTensor>* tensors) {
                              Find(tensors, "lm_head.weight").values[7] += 1;
                            }),
                {"model.safetensors", "\"lm_head.weight\"", "tie_word_embeddings"});
}

TEST_F(WeightStoreTest, RefusesAnUntiedModelWithoutLmHead) {
  ExpectRefused(Load({.tied = false, .store_lm_head = false}),
                {"\"lm_head.weight\" is missing", "tie_word_embeddings"});
}

TEST_F(WeightStoreTest, NamesEveryMissingTensor) {
  for (const NamedTensor& tensor : MakeTensors({})) {
    ExpectRefused(LoadChanged({},
                              [&tensor](std::vector<NamedTensor>* tensors) {
                                std::erase_if(*tensors, [&tensor](const NamedTensor& other) {
                                  return other.name == tensor.name;
                                });
                              }),
                  {"\"" + tensor.name + "\"", "is missing"});
  }
}

TEST_F(WeightStoreTest, NamesATensorThatIsNoPartOfTheModel) {
  const std::string extra = "model.layers.2.mlp.up_proj.weight";
  ExpectRefused(LoadChanged({},
                            [&extra](std::vector<NamedTensor>* tensors) {
                              tensors->push_back({extra, {1}, {1}});
                            }),
                {"model.safetensors", "\"" + extra + "\"", "not part"});
}

TEST_F(WeightStoreTest, NamesATensorOfAnotherShape) {
  ExpectRefused(
      LoadChanged({},
                  [](std::vector<NamedTensor>* tensors) {
                    std::swap(Find(tensors, "model.layers.1.mlp.up_proj.weight").shape[0],
                              Find(tensors, "model.layers.1.mlp.up_proj.weight").shape[1]);
                  }),
      {"model.safetensors", "model.layers.1.mlp.up_proj.weight", "[64, 128]", "[128, 64]"});
}

TEST_F(WeightStoreTest, NamesATensorWithNanOrInfinityInside) {
  for (const StoredType stored : {StoredType::kBf16, StoredType::kF32}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      ExpectRefused(LoadChanged({.stored = stored},
                                [bad](std::vector<NamedTensor>* tensors) {
                                  Find(tensors, "model.norm.weight").values[63] = bad;
                                }),
                    {"model.safetensors", "\"model.norm.weight\"", "element 63"});
    }
  }
}

TEST_F(WeightStoreTest, NamesATensorOfAnotherType) {
  const std::string directory = directory_.File("f16");
  testing::WriteCheckpoint(directory, {});
  std::string bytes = testing::SafetensorsBytes(MakeTensors({}), StoredType::kBf16);
  const size_t at = bytes.find("\"BF16\"", bytes.find("\"model.norm.weight\""));
  bytes.replace(at, 6, "\"F16\" ");
  testing::WriteBytes(directory + "/model.safetensors", bytes);
  ExpectRefused(LoadDirectory(directory, 1), {"\"model.norm.weight\"", "F16", "BF16 and F32"});
}

TEST_F(WeightStoreTest, SegmentsMustCutWholeHeadsIntoMultiplesOf64) {
  EXPECT_TRUE(Load({}, 1).ok());
  EXPECT_TRUE(Load({}, 2).ok());
  ExpectRefused(Load({}, 4), {"reduction_segments = 4", "o_proj", "128"});
  ExpectRefused(Load({.head_dim = 64}, 4), {"reduction_segments = 4", "down_proj", "128"});
  EXPECT_TRUE(Load({.head_dim = 64, .ffn = 256}, 4).ok());
  ExpectRefused(Load({.head_dim = 64, .ffn = 512}, 8), {"reduction_segments = 8", "4 q heads"});
  ExpectRefused(Load({}, 3), {"reduction_segments = 3", "power of two"});
  ExpectRefused(Load({}, 0), {"reduction_segments = 0", "power of two"});
  EXPECT_TRUE(Load({.ffn = 96}, 1).ok());
}

// Pages of mapped files in this process's memory.
int64_t MappedFileBytes() {
  int64_t kilobytes = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) kilobytes += std::stoll(line.substr(8));
    if (line.starts_with("RssShmem:")) kilobytes += std::stoll(line.substr(9));
  }
  return kilobytes * 1024;
}

TEST_F(WeightStoreTest, MappedPagesAreDroppedOncePacked) {
  const std::string directory = directory_.File("large");
  testing::WriteCheckpoint(directory, {.stored = StoredType::kF32, .vocabulary = 60000});
  const ModelConfig config = *LoadModelConfig(directory);
  const Checkpoint checkpoint = *Checkpoint::Open(directory);
  const int64_t before = MappedFileBytes();
  TensorReader reader(checkpoint);
  const auto weights = LoadWeights(config, &reader, {}, kernels_.get());
  ASSERT_TRUE(weights.ok()) << weights.status();
  // The file has 31 MB, and reading it maps them all.
  EXPECT_LT(MappedFileBytes() - before, int64_t{4} << 20);
  const Checkpoint::Tensor* embedding = checkpoint.Find("model.embed_tokens.weight");
  const auto data = embedding->file->Data(*embedding->entry);
  EXPECT_EQ(FindNonFinite(data, kernels::DType::kF32), std::nullopt);
  EXPECT_GT(MappedFileBytes() - before, int64_t{12} << 20) << "the measure sees mapped pages";
}

TEST(FindNonFiniteTest, FindsTheFirstAtEveryPlaceAndAlignment) {
  constexpr size_t kCount = 5000;
  std::vector<char> memory(kCount * sizeof(float) + 8);
  for (const size_t shift : {0, 1, 2, 5}) {
    for (const size_t at : {size_t{0}, size_t{1}, size_t{1023}, size_t{1024}, kCount - 1}) {
      std::vector<float> values(kCount, std::numeric_limits<float>::max());
      const auto bytes =
          std::span(reinterpret_cast<std::byte*>(memory.data()) + shift, kCount * sizeof(float));
      std::memcpy(bytes.data(), values.data(), bytes.size());
      EXPECT_EQ(FindNonFinite(bytes, kernels::DType::kF32), std::nullopt);
      values[at] = std::numeric_limits<float>::infinity();
      values[kCount - 1] = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(bytes.data(), values.data(), bytes.size());
      EXPECT_EQ(FindNonFinite(bytes, kernels::DType::kF32), static_cast<int64_t>(at));
    }
  }
}

// Every bf16 there is, alone at the end of an array whose length is no multiple of a word.
TEST(FindNonFiniteTest, AgreesWithTheExponentOfEveryBf16) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t values[3] = {0x3F80, 0x8000, static_cast<uint16_t>(bits)};
    const auto found = FindNonFinite(std::as_bytes(std::span(values)), kernels::DType::kBf16);
    ASSERT_EQ(found.has_value(), (bits & 0x7F80) == 0x7F80) << bits;
  }
}

}  // namespace
}  // namespace lockstep::worker
