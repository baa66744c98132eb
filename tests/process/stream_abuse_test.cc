// Clients that misuse their streams, against real processes. Goal: what they make each service hold
// is bounded by slots and credit, whatever they write and however slowly they read; others are
// served meanwhile; and who reads on gets everything. How fast others are served then is measured
// by bench/cluster/stream_abuse_bench.cc.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/process/stream_abuse.h"

namespace lockstep::testing {
namespace {

constexpr int kCalls = 300;
constexpr int kCallsPerLook = 10;
// By then everything that limits hold back is held back.
constexpr absl::Duration kAbuse = absl::Seconds(5);

class StreamAbuseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = MemberCluster::Start({.cluster = {.model = "null:", .kv_mib = 256}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
    Serve();
    before_ = MemoryOf(*cluster_);
  }

  // Calls of another client, and a look at the memory now and then.
  void Serve(absl::Duration duration = absl::ZeroDuration()) {
    const absl::Time end = absl::Now() + duration;
    v1::GenerateRequest request;
    request.mutable_prompt_ids()->add_ids(1);
    request.mutable_stop()->set_max_new_tokens(4);
    for (int call = 0; call < kCalls || absl::Now() < end; ++call) {
      const auto answer = cluster_->client().Generate(request);
      ASSERT_TRUE(answer.ok()) << answer.status();
      if (call % kCallsPerLook != 0) continue;
      for (const auto& [name, bytes] : MemoryOf(*cluster_)) {
        peak_[name] = std::max(peak_[name], bytes);
      }
    }
  }

  void ExpectBounded(const std::function<std::unique_ptr<StreamAbuse>(MemberCluster*)>& start) {
    const std::unique_ptr<StreamAbuse> abuse = start(cluster_.get());
    ASSERT_NO_FATAL_FAILURE(Serve(kAbuse));
    for (const auto& [name, peak] : peak_) {
      const int64_t grown = peak - before_[name];
      std::printf("%s: %s grew by %.1f of at most %.1f MB\n", std::string(abuse->name()).c_str(),
                  name.c_str(), 1e-6 * static_cast<double>(grown),
                  1e-6 * static_cast<double>(abuse->bytes_max()));
      EXPECT_LE(grown, abuse->bytes_max()) << name;
    }
    const absl::Status stopped = abuse->Stop();
    EXPECT_TRUE(stopped.ok()) << stopped;
    ASSERT_NO_FATAL_FAILURE(Serve());
  }

  std::unique_ptr<MemberCluster> cluster_;
  std::map<std::string, int64_t> before_;
  std::map<std::string, int64_t> peak_;
};

TEST_F(StreamAbuseTest, PromptsThatNobodyReadsTheAnswersOfTakeBoundedMemory) {
  ExpectBounded(StartUnreadPrompts);
}

TEST_F(StreamAbuseTest, AHalfClosedStreamThatNobodyReadsTakesBoundedMemory) {
  ExpectBounded(StartHalfClose);
}

TEST_F(StreamAbuseTest, ReadersOfAByteASecondTakeBoundedMemoryAndLoseNothing) {
  ExpectBounded(StartSlowReaders);
}

TEST_F(StreamAbuseTest, AnswersLargerThanTheClientTakesDoNotAddUp) {
  ExpectBounded(StartLargeAnswers);
}

}  // namespace
}  // namespace lockstep::testing
