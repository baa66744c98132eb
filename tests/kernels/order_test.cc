#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/order/reduction_order.h"
#include "kernels/order/tree.h"
#include "tests/support/bitwise.h"
#include "tests/support/philox_data.h"

namespace lockstep::kernels {
namespace {

using ::testing::AllOf;
using testing::BitwiseEqual;
using ::testing::HasSubstr;
using testing::WideData;

TEST(TreeSumTest, AddsNeighboursLevelByLevel) {
  const float v[] = {0x1p24f, 1, 1, 1, -0x1p24f, 1};
  // ((2^24 + 1) + (1 + 1)) + ((-2^24 + 1) + 0), where 2^24 + 1 rounds to 2^24.
  EXPECT_EQ(TreeSum(v), (0x1p24f + 2) + (-0x1p24f + 1));
  EXPECT_EQ(TreeSum({}), 0);
  EXPECT_EQ(TreeSum({v, 1}), 0x1p24f);
}

TEST(TreeSumTest, AlignedBlocksAreSubtrees) {
  const std::vector<float> v = WideData(1, 1000);
  for (const size_t block : {2, 16, 128, 512}) {
    std::vector<float> partial;
    for (size_t i = 0; i < v.size(); i += block) {
      std::vector<float> part(v.begin() + static_cast<ptrdiff_t>(i),
                              v.begin() + static_cast<ptrdiff_t>(std::min(v.size(), i + block)));
      part.resize(block);
      partial.push_back(TreeSum(part));
    }
    const float whole = TreeSum(v);
    const float from_blocks = TreeSum(partial);
    EXPECT_TRUE(BitwiseEqual({&from_blocks, 1}, {&whole, 1})) << "block " << block;
  }
}

TEST(TreeSumTest, RanksThatOwnSubtreesSumToTheWhole) {
  for (const size_t segments : {1, 2, 4, 8}) {
    const std::vector<float> v = WideData(2, segments);
    const float whole = TreeSum(v);
    for (size_t ranks = 1; ranks <= segments; ranks *= 2) {
      std::vector<float> per_rank;
      const size_t owned = segments / ranks;
      for (size_t r = 0; r < ranks; ++r) per_rank.push_back(TreeSum({&v[r * owned], owned}));
      const float sum = TreeSum(per_rank);
      EXPECT_TRUE(BitwiseEqual({&sum, 1}, {&whole, 1})) << segments << " on " << ranks;
    }
  }
}

TEST(ReductionOrderTest, CutsInputsIntoEqualSegments) {
  const auto order = ReductionOrder::Create("o_proj", {.n = 10, .k = 512, .segments = 4});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->segments(), 4);
  EXPECT_EQ(order->segment_begin(3), 384);
  EXPECT_EQ(order->segment_end(3), 512);
}

TEST(ReductionOrderTest, OneSegmentTakesAnyLength) {
  EXPECT_TRUE(ReductionOrder::Create("lm_head", {.n = 1, .k = 7, .segments = 1}).ok());
}

TEST(ReductionOrderTest, RefusesUnequalSegmentsNamingLayerAndNumbers) {
  const auto status =
      ReductionOrder::Create("layers.3.down_proj", {.n = 8, .k = 320, .segments = 2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("layers.3.down_proj"), HasSubstr("320"), HasSubstr("2")));
}

TEST(ReductionOrderTest, RefusesSegmentsThatAreNoPowerOfTwo) {
  for (const int segments : {0, -2, 3, 6}) {
    EXPECT_FALSE(ReductionOrder::Create("x", {.n = 8, .k = 384, .segments = segments}).ok())
        << segments;
  }
}

}  // namespace
}  // namespace lockstep::kernels
