#include "tests/process/lossless_load.h"

#include <cstdio>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::testing {

void ExpectLossless(StreamLoad* load, const MemberCluster& cluster) {
  const StreamLoad::Result result = load->Finish();
  std::printf("%d answers, %d resumptions, longest gap %s\n", static_cast<int>(result.answers),
              static_cast<int>(result.resumptions), absl::FormatDuration(result.gap_max).c_str());
  ::testing::Test::RecordProperty("answers", static_cast<int>(result.answers));
  ::testing::Test::RecordProperty("gap_max_ms",
                                  static_cast<int>(absl::ToInt64Milliseconds(result.gap_max)));
  EXPECT_THAT(result.failures, ::testing::IsEmpty());
  EXPECT_GE(result.resumptions, 1);
  EXPECT_LE(result.gap_max, cluster.lease() + absl::Seconds(1));
  EXPECT_EQ(cluster.Metric("router", "lockstep_router_bit_mismatches_total"), 0);
  EXPECT_EQ(cluster.Metric("gateway", "lockstep_gateway_bit_mismatches_total"), 0);
}

}  // namespace lockstep::testing
