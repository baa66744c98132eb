#include "services/worker/worker_options.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

config::v1::WorkerConfig Config(const std::string& backend) {
  config::v1::WorkerConfig config;
  config.mutable_server()->set_listen("127.0.0.1:0");
  config.mutable_server()->set_cluster_id("test");
  config.mutable_server()->set_plaintext(true);
  config.set_worker_id("worker");
  config.set_scheduler("127.0.0.1:1");
  config.set_model("null:");
  config.set_backend(backend);
  return config;
}

void ExpectRefused(const config::v1::WorkerConfig& config, const std::string& named) {
  const absl::Status status = ReadWorkerOptions(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(named));
}

TEST(WorkerOptionsTest, DefaultsFollowTheBackend) {
  const auto cpu = ReadWorkerOptions(Config(""));
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_EQ(cpu->backend, "cpu");
  EXPECT_EQ(cpu->split_kv_size, 256);
  EXPECT_EQ(cpu->chunk_tokens, 512);
  EXPECT_EQ(cpu->kv_bytes, 0);
  const auto cuda = ReadWorkerOptions(Config("cuda"));
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  EXPECT_EQ(cuda->split_kv_size, 1024);
  EXPECT_EQ(cuda->chunk_tokens, 8192);
  EXPECT_EQ(cuda->kv_bytes, 0);
}

TEST(WorkerOptionsTest, TheDefaultChunkIsAWholeNumberOfSplits) {
  config::v1::WorkerConfig config = Config("cpu");
  config.set_split_kv_size(96);
  EXPECT_EQ(ReadWorkerOptions(config)->chunk_tokens, 480);
  config.set_split_kv_size(2048);
  EXPECT_EQ(ReadWorkerOptions(config)->chunk_tokens, 2048);
}

TEST(WorkerOptionsTest, RefusesByName) {
  ExpectRefused(Config("tpu"), "\"tpu\"");
  config::v1::WorkerConfig config = Config("cpu");
  config.set_certificates_path("/tmp/certificates");
  ExpectRefused(config, "certificates_path");
  config = Config("cpu");
  config.set_reduction_segments(4);
  config.set_tensor_parallel(3);
  ExpectRefused(config, "tensor_parallel: 3 is no power of two");
  config.set_tensor_parallel(8);
  ExpectRefused(config, "tensor_parallel: 8 is more than reduction_segments, 4");
  config.set_tensor_parallel(4);
  ExpectRefused(config, "tensor_parallel: 4 of the null model");
  config = Config("cuda");
  config.set_chunk_tokens(1000);
  ExpectRefused(config, "chunk_tokens: 1000");
}

TEST(WorkerOptionsTest, NormalModeIsAskedForByNameAndOnADeviceAlone) {
  config::v1::WorkerConfig config = Config("cuda");
  EXPECT_FALSE(ReadWorkerOptions(config)->normal);
  config.set_mode("deterministic");
  EXPECT_FALSE(ReadWorkerOptions(config)->normal);
  config.set_mode("normal");
  EXPECT_TRUE(ReadWorkerOptions(config)->normal);
  config.set_backend("cpu");
  ExpectRefused(config, "mode: backend cpu");
  config.set_mode("fast");
  ExpectRefused(config, "mode: \"fast\"");
}

TEST(WorkerOptionsTest, RanksMayShareAModelInNormalMode) {
  config::v1::WorkerConfig config = Config("cuda");
  config.set_model("random:qwen3-tiny");
  config.set_mode("normal");
  config.set_reduction_segments(2);
  config.set_tensor_parallel(2);
  const auto options = ReadWorkerOptions(config);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->normal);
  EXPECT_EQ(options->tensor_parallel, 2);
}

TEST(WorkerOptionsTest, ShadowsNeedAModeToCompareWith) {
  config::v1::WorkerConfig config = Config("cuda");
  EXPECT_EQ(ReadWorkerOptions(config)->shadow_every_steps, 0);
  config.set_shadow_every_steps(1000);
  ExpectRefused(config, "shadow_every_steps: 1000 needs a backend with a normal mode");
  config.set_model("random:qwen3-tiny");
  EXPECT_EQ(ReadWorkerOptions(config)->shadow_every_steps, 1000);
  config.set_mode("normal");
  ExpectRefused(config, "shadow_every_steps: 1000 needs mode deterministic");
  config.clear_mode();
  config.set_reduction_segments(2);
  config.set_tensor_parallel(2);
  ExpectRefused(config, "shadow_every_steps: 1000 needs tensor_parallel 1");
  config.clear_tensor_parallel();
  config.set_backend("cpu");
  ExpectRefused(config, "shadow_every_steps: 1000 needs a backend with a normal mode");
}

TEST(WorkerOptionsTest, CertificatesBelongToTheCudaBackend) {
  config::v1::WorkerConfig config = Config("cuda");
  config.set_certificates_path("/tmp/certificates");
  EXPECT_EQ(ReadWorkerOptions(config)->certificates_path, "/tmp/certificates");
}

}  // namespace
}  // namespace lockstep::worker
