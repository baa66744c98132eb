#include "services/gateway/credit_window.h"

#include "gtest/gtest.h"

namespace lockstep::gateway {
namespace {

ValidRequest Request(int64_t samples, int top_count) {
  ValidRequest request;
  request.n = samples;
  request.effective.mutable_logprobs()->set_generated(true);
  request.effective.mutable_logprobs()->set_top_count(top_count);
  return request;
}

// Of a token: its id, raw and scaled logprob, and two arrays of the top ones.
int64_t TokenBytes(int top_count) { return 4 * (3 + 2 * top_count); }

TEST(CreditWindowTest, BytesUnderWayOfARequestAreBoundedOverAllOfItsSamples) {
  for (const int64_t samples : {1, 2, 8, 16, 60}) {
    for (const int top_count : {0, 1, 8, 64}) {
      const int64_t window = CreditWindow(Request(samples, top_count));
      EXPECT_GE(window, 4);
      EXPECT_LE(window * samples * TokenBytes(top_count), 128 << 10)
          << samples << " samples, " << top_count << " top logprobs";
    }
  }
}

TEST(CreditWindowTest, AWorkerNeverWaitsForTheGrantOfEachToken) {
  EXPECT_GE(CreditWindow(Request(512, 64)), 4);
}

TEST(CreditWindowTest, AnOrdinaryRequestIsGrantedToRarely) {
  EXPECT_EQ(CreditWindow(Request(16, 0)), 256);
}

}  // namespace
}  // namespace lockstep::gateway
