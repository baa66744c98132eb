// A scratch of attention laid out for smaller splits than it was made for. Needs no device.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/backend/step_scratch.h"
#include "kernels/cuda/contract.h"

namespace lockstep::kernels::cuda {
namespace {

// For 64 sequences of four splits.
class OtherSplitsTest : public ::testing::Test {
 protected:
  OtherSplitsTest() {
    scratch_.limits = {.rows = 256,
                       .sequences = 64,
                       .splits_max = 4,
                       .q_heads = 32,
                       .kv_heads = 8,
                       .head_dim = 128};
    bytes_.resize(AttentionWorkspaceBytes(scratch_.limits));
    scratch_.memory = Buffer(bytes_.data(), bytes_.size(), [](void*) {});
  }
  static StepShape Decode(int sequences, int pages) {
    return {.rows = sequences, .sequences = sequences, .blocks_max = pages};
  }

  AttentionScratch scratch_;
  std::vector<uint8_t> bytes_;
};

TEST_F(OtherSplitsTest, AStepGetsAllSplitsOfItsContextOrNoScratch) {
  int held = 0;
  int refused = 0;
  for (const int sequences : {1, 2, 16, 63, 64, 256}) {
    for (const int pages : {1, 8, 9, 32, 320}) {
      for (const int size : {256, 512, 1024, 4096}) {
        const auto other = OtherSplits(scratch_, Decode(sequences, pages), size);
        if (!other.has_value()) {
          ++refused;
          continue;
        }
        ++held;
        EXPECT_GE(other->limits.splits_max * size, pages * kPageTokens);
        EXPECT_EQ(other->limits.sequences, sequences);
        const size_t states = static_cast<size_t>(sequences * 4 * other->limits.splits_max) * 8 * 2;
        EXPECT_LE(
            reinterpret_cast<uint8_t*>(other->workspace.partial_states + states) - bytes_.data(),
            static_cast<ptrdiff_t>(bytes_.size()))
            << sequences << " sequences of " << pages << " pages in splits of " << size;
      }
    }
  }
  EXPECT_GT(held, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(OtherSplitsTest, FewSequencesGetFinerSplitsThanTheScratchWasMadeFor) {
  constexpr int kSize = 256;
  constexpr int kPages = 16 * kSize / kPageTokens;  // Of 16 splits, where the scratch has four.
  EXPECT_TRUE(OtherSplits(scratch_, Decode(1, kPages), kSize).has_value());
  EXPECT_TRUE(OtherSplits(scratch_, Decode(15, kPages), kSize).has_value());
  EXPECT_FALSE(OtherSplits(scratch_, Decode(64, kPages), kSize).has_value());
}

}  // namespace
}  // namespace lockstep::kernels::cuda
