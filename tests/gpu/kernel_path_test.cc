// Which kernels a GPU gets, by its compute capability alone. Needs no device.
#include "kernels/cuda/backend/kernel_path_of.h"

#include "gtest/gtest.h"
#include "kernels/cuda/launch.h"

namespace lockstep::kernels::cuda {
namespace {

TEST(KernelPathTest, HopperGetsItsOwnKernelsAndOthersThePortableOnes) {
  EXPECT_EQ(KernelPathOf("NVIDIA H200", 9, 0).value(), KernelPath::kSm90);
  EXPECT_EQ(KernelPathOf("NVIDIA A100-SXM4-80GB", 8, 0).value(), KernelPath::kPortable);
  EXPECT_EQ(KernelPathOf("NVIDIA L40S", 8, 9).value(), KernelPath::kPortable);
  EXPECT_EQ(KernelPathOf("NVIDIA B200", 10, 0).value(), KernelPath::kPortable);
}

// The library holds Hopper's code, and Ampere's for all others: overlapping, that would race.
TEST(KernelPathTest, KernelsOverlapOnlyWhereTheirCodeWaitsForThoseAhead) {
  EXPECT_TRUE(CodeWaits(9, 0));
  for (const int major : {8, 10, 11, 12}) EXPECT_FALSE(CodeWaits(major, 0)) << major;
}

TEST(KernelPathTest, AnOlderGpuIsRefusedByName) {
  const auto path = KernelPathOf("Tesla T4", 7, 5);
  EXPECT_EQ(path.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(path.status().message(),
            "the device, Tesla T4, has compute capability 7.5; the kernels need 8.0 or later");
}

}  // namespace
}  // namespace lockstep::kernels::cuda
