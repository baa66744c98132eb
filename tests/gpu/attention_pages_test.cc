// What a sequence leaves in a page of KV.
#include <cmath>
#include <vector>

#include "tests/gpu/attention_rig.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/bitwise.h"

namespace lockstep {
namespace {

using testing::AttentionRig;
using testing::BitwiseEqual;
using testing::Chunk;

class AttentionPagesTest : public testing::GpuPathTest {};

INSTANTIATE_TEST_SUITE_P(Paths, AttentionPagesTest, testing::BothPaths(), testing::NameOfPath);

// What a page holds is known by its tokens: whatever follows them must not change it.
TEST_P(AttentionPagesTest, NanOfALaterPageReachesNoRowOfEarlierOnes) {
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 16}) {
    AttentionRig rig({.path = GetParam(), .q_heads = group, .kv_heads = 1, .positions = 1200});
    for (const int border : {64, 192, 1024}) {
      for (const int before : {1, 2, 3, 7, 64}) {
        for (const int behind : {1, 2, 9, 70}) {
          Chunk chunk{.stream = 1, .begin = border - before, .end = border + behind};
          const std::vector<float> healthy = rig.Step({chunk});
          chunk.nan_from = border;
          const std::vector<float> y = rig.Step({chunk});
          const size_t values = static_cast<size_t>(before) * rig.row_width();
          const auto first_of = [values](const std::vector<float>& all) {
            return std::vector<float>(all.begin(), all.begin() + static_cast<ptrdiff_t>(values));
          };
          ASSERT_TRUE(BitwiseEqual(first_of(y), first_of(healthy), rig.row_width()))
              << group << " heads, rows [" << chunk.begin << ", " << chunk.end << ")";
          ASSERT_TRUE(std::isnan(y[values])) << "the planted NaN was not read";
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
