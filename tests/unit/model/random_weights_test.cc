#include "services/worker/model/random_weights.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "services/worker/model/random_model.h"
#include "tests/support/philox_data.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

std::vector<float> Values(RandomWeights* weights, const std::string& name,
                          const std::vector<int64_t>& shape) {
  const kernels::HostTensor tensor = *weights->Take(name, shape);
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  std::vector<uint16_t> bits(count);
  std::memcpy(bits.data(), tensor.data, count * sizeof(uint16_t));
  return testing::FloatsOfBf16(bits);
}

double Mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double Deviation(const std::vector<float>& values) {
  const double mean = Mean(values);
  double sum = 0;
  for (const float value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

class RandomWeightsTest : public ::testing::Test {
 protected:
  const ModelConfig config_ = ParseRandomModel("random:qwen3-tiny")->config;
};

TEST_F(RandomWeightsTest, AreAFunctionOfSeedNameAndIndex) {
  RandomWeights first(config_, 1, nullptr);
  RandomWeights again(config_, 1, nullptr);
  RandomWeights other(config_, 2, nullptr);
  // Of several parts of a thread each.
  const std::vector<int64_t> shape = {3000, 1000};
  const std::vector<float> values = Values(&first, "a.weight", shape);
  EXPECT_EQ(values, Values(&again, "a.weight", shape));
  EXPECT_NE(values, Values(&other, "a.weight", shape));
  EXPECT_NE(values, Values(&first, "b.weight", shape));
  const std::vector<float> head = Values(&again, "a.weight", {1, 1000});
  EXPECT_TRUE(std::equal(head.begin(), head.end(), values.begin()));
}

// Of n draws, the mean is within 6 standard errors and the deviation within 6 of its own.
TEST_F(RandomWeightsTest, HaveTheStatedMeanAndDeviation) {
  RandomWeights weights(config_, 3, nullptr);
  const std::vector<float> linear =
      Values(&weights, "model.layers.0.mlp.up_proj.weight", {512, 256});
  const double n = static_cast<double>(linear.size());
  EXPECT_NEAR(Mean(linear), 0, 6 * 0.0625 / std::sqrt(n));
  EXPECT_NEAR(Deviation(linear), 0.0625, 6 * 0.0625 / std::sqrt(2 * n));
  const std::vector<float> q_norm =
      Values(&weights, "model.layers.0.self_attn.q_norm.weight", {64});
  EXPECT_NEAR(Mean(q_norm), 4, 6 * 0.5 / std::sqrt(64.0));
}

TEST_F(RandomWeightsTest, NormsHaveAnOutlierChannel) {
  RandomWeights weights(config_, 3, nullptr);
  const std::vector<float> norm = Values(&weights, "model.layers.0.input_layernorm.weight", {512});
  int outliers = 0;
  for (const float value : norm) outliers += std::abs(value) > 8;
  EXPECT_EQ(outliers, 2);
}

TEST(RandomModelTest, NamesAShapeAndASeed) {
  EXPECT_EQ(ParseRandomModel("random:qwen3-8b")->seed, 0u);
  const absl::StatusOr<RandomModel> model =
      ParseRandomModel("random:qwen3-8b@18446744073709551615");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->seed, UINT64_MAX);
  EXPECT_EQ(model->config.hidden, 4096);
  for (const char* wrong : {"random:", "random:qwen3-9b", "random:qwen3-8b@", "random:qwen3-8b@-1",
                            "random:qwen3-8b@x"}) {
    const absl::Status status = ParseRandomModel(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong));
  }
}

TEST(RandomModelTest, LoadsAsAModelWithoutADirectory) {
  const auto load = [](const std::string& model) {
    return LoadModel({.model = model, .kv_bytes = 4 << 20},
                     *kernels::CreateKernelSet({.backend = "cpu", .threads = 1}));
  };
  const auto model = load("random:qwen3-tiny@5");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.name, "qwen3-tiny");
  EXPECT_EQ(model->facts.directory, "");
  EXPECT_EQ(model->facts.vocabulary, 1024);
  EXPECT_EQ(load("random:qwen3-tiny@5")->weights_digest, model->weights_digest);
  EXPECT_NE(load("random:qwen3-tiny@6")->weights_digest, model->weights_digest);
  EXPECT_EQ(load("random:qwen3-tiny@6")->fingerprint.model_digest, model->fingerprint.model_digest);
}

}  // namespace
}  // namespace lockstep::worker
