#include "services/worker/model/model_factory.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "tests/support/checkpoint_writer.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelFactoryTest : public ::testing::Test {
 protected:
  ModelFactoryTest() : directory_(temporary_.File("tiny-model")) {
    testing::WriteCheckpoint(directory_, {});
  }
  absl::StatusOr<LoadedModel> Load(ModelOptions options) {
    return LoadModel(options, *kernels::CreateKernelSet({.backend = "cpu", .threads = 1}));
  }
  ModelOptions Valid() { return {.model = directory_, .kv_bytes = 4 << 20}; }
  void ExpectRefused(const ModelOptions& options, const std::string& named) {
    const absl::Status status = Load(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  }

  testing::TemporaryDirectory temporary_;
  const std::string directory_;
};

TEST_F(ModelFactoryTest, TellsFactsAndFingerprintOfADirectory) {
  ModelOptions options = Valid();
  options.model += "/";
  options.vocabulary_sampled = 300;
  const auto model = Load(options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.name, "tiny-model");
  EXPECT_EQ(model->facts.vocabulary, 320);
  EXPECT_THAT(model->facts.eos_ids, ElementsAre(2, 3));
  EXPECT_THAT(model->facts.generation_config_json, HasSubstr("top_k"));
  EXPECT_EQ(model->facts.context_tokens_max, 1024);
  EXPECT_EQ(model->fingerprint.backend, "cpu");
  EXPECT_EQ(model->fingerprint.vocabulary_sampled, 300);
  EXPECT_EQ(model->fingerprint.kv_type, "f32");
  EXPECT_EQ(model->fingerprint.logits_type, "f32");
  EXPECT_EQ(model->fingerprint.model_digest.size(), size_t{32});
  EXPECT_EQ(model->fingerprint.rope_digest.size(), size_t{32});
  // fp32 keys and values of 2 layers, 2 heads of 32.
  const int64_t block_bytes = int64_t{2} * 2 * 2 * 32 * 4 * model->executor->kv_block_tokens();
  EXPECT_EQ(model->executor->kv_block_count(), options.kv_bytes / block_bytes);
}

TEST_F(ModelFactoryTest, CapacityIsNoPartOfTheFingerprint) {
  const auto large = Load(Valid());
  ModelOptions options = Valid();
  options.kv_bytes = 1 << 20;
  options.context_tokens_max = 256;
  options.sequences_max = 3;
  options.chunk_tokens = 256;
  const auto small = Load(options);
  ASSERT_TRUE(large.ok() && small.ok()) << small.status();
  EXPECT_EQ(small->fingerprint.rope_digest, large->fingerprint.rope_digest);
  EXPECT_EQ(small->fingerprint.model_digest, large->fingerprint.model_digest);
  EXPECT_EQ(small->weights_digest, large->weights_digest);
  EXPECT_EQ(small->facts.context_tokens_max, 256);
}

TEST_F(ModelFactoryTest, RefusesOptionsByName) {
  ModelOptions options = Valid();
  options.split_kv_size = 48;
  ExpectRefused(options, "split_kv_size = 48");
  options = Valid();
  options.chunk_tokens = 300;
  ExpectRefused(options, "chunk_tokens = 300");
  options = Valid();
  options.context_tokens_max = 1025;
  ExpectRefused(options, "context_tokens_max = 1025");
  options = Valid();
  options.vocabulary_sampled = 321;
  ExpectRefused(options, "vocabulary_sampled = 321");
  options = Valid();
  options.sequences_max = 0;
  ExpectRefused(options, "sequences_max = 0");
  options = Valid();
  options.kv_bytes = 1000;
  ExpectRefused(options, "kv_bytes = 1000");
  options = Valid();
  options.reduction_segments = 5;
  ExpectRefused(options, "reduction_segments = 5");
  options = Valid();
  options.model = "";
  ExpectRefused(options, "model = \"\"");
}

// Weights take long: what needs none is looked at before. Here they cannot be loaded.
TEST_F(ModelFactoryTest, RefusesOptionsBeforeItLoadsWeights) {
  testing::WriteBytes(directory_ + "/config.json", testing::ConfigJson({.layers = 3}));
  ModelOptions options = Valid();
  ExpectRefused(options, "model.layers.2.");
  options.kv_bytes = 1000;
  ExpectRefused(options, "kv_bytes = 1000");
  options = Valid();
  options.reduction_segments = 5;
  ExpectRefused(options, "reduction_segments = 5");
}

// A FIFO that nobody writes to, and devices without an end: loading has to return.
TEST_F(ModelFactoryTest, EveryFileOfADirectoryIsARegularOne) {
  for (const std::string name : {"config.json", "generation_config.json", "model.safetensors",
                                 "model.safetensors.index.json"}) {
    const std::string path = directory_ + "/" + name;
    const std::string aside = temporary_.File("aside");
    const bool present = std::filesystem::exists(path);
    if (present) std::filesystem::rename(path, aside);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    ExpectRefused(Valid(), path + ": is no regular file");
    std::filesystem::remove(path);
    std::filesystem::create_symlink("/dev/zero", path);
    ExpectRefused(Valid(), path + ": is no regular file");
    std::filesystem::remove(path);
    if (present) std::filesystem::rename(aside, path);
  }
}

TEST_F(ModelFactoryTest, NamesAModelThatIsNotThere) {
  ModelOptions options = Valid();
  options.model = temporary_.File("none");
  const absl::Status status = Load(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options.model));
  EXPECT_EQ(LoadModel(Valid(), nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ModelFactoryTest, TheNullModelNeedsNoBackend) {
  const auto model = LoadModel({.model = kNullModel}, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->facts.name, "null");
  EXPECT_EQ(model->fingerprint.backend, "null");
  EXPECT_THAT(model->facts.eos_ids, ElementsAre());
  EXPECT_GT(model->executor->kv_block_count(), 1000);
}

}  // namespace
}  // namespace lockstep::worker
