#include "kernels/factory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;

TEST(FactoryTest, MakesTheCpuBackend) {
  const auto kernels = CreateKernelSet({.backend = "cpu", .threads = 1});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_EQ((*kernels)->traits().name, "cpu");
}

TEST(FactoryTest, ZeroThreadsIsOnePerCore) {
  EXPECT_TRUE(CreateKernelSet({.backend = "cpu", .threads = 0}).ok());
  EXPECT_EQ(CreateKernelSet({.backend = "cpu", .threads = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FactoryTest, NamesABackendThatThisBuildLacks) {
  const absl::Status status = CreateKernelSet({.backend = "cuda"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuda"));
}

TEST(FactoryTest, TheCpuBackendHasNoNormalMode) {
  EXPECT_TRUE((*CreateKernelSet({.backend = "cpu"}))->traits().deterministic);
  const absl::Status status = CreateKernelSet({.backend = "cpu", .normal = true}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("normal mode"));
}

TEST(FactoryTest, RefusesAnUnknownBackend) {
  const absl::Status status = CreateKernelSet({.backend = "tpu"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tpu"));
}

TEST(FactoryTest, EachBackendHasASplitOfItsOwn) {
  EXPECT_EQ(DefaultSplitKvSize("cpu").value(), 256);
  EXPECT_EQ(DefaultSplitKvSize("cuda").value(), 1024);
  EXPECT_EQ(DefaultSplitKvSize("tpu").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FactoryTest, TheCpuBackendHasNothingToCertify) {
  const auto report = Certify({.backend = "cpu"}, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->certified.empty() && report->refused.empty());
  EXPECT_EQ(Certify({.backend = "tpu"}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::kernels
