// Clients that misuse their streams, against real processes. Goal: what they make each service hold
// is bounded by slots and credit, whatever they write and however slowly they read; others are
// served meanwhile; and who reads on gets everything. How fast others are served then is measured
// by bench/cluster/stream_abuse_bench.cc.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/cli/wait_until.h"
#include "tests/process/stream_abuse.h"

namespace lockstep::testing {
namespace {

constexpr int kCalls = 300;
constexpr int kCallsPerLook = 10;
// By then everything that limits hold back is held back.
constexpr absl::Duration kAbuse = absl::Seconds(5);
constexpr int kSlots = 1024;  // Default of GatewayConfig.stream_slots.
constexpr absl::Duration kPatience = absl::Seconds(20);

class StreamAbuseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // A test stops workers for a moment, and none is lost by that.
    auto started =
        MemberCluster::Start({.cluster = {.model = "null:", .kv_mib = 256}, .lease_seconds = 30});
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

  static void ExpectGrowth(const StreamAbuse& abuse, const std::string& name, int64_t grown) {
    const int64_t bound = name == "router" ? abuse.router_bytes_max() : abuse.bytes_max();
    std::printf("%s: %s grew by %.1f of at most %.1f MB\n", std::string(abuse.name()).c_str(),
                name.c_str(), 1e-6 * static_cast<double>(grown), 1e-6 * static_cast<double>(bound));
    EXPECT_LE(grown, bound) << name;
  }

  void ExpectBounded(const std::function<std::unique_ptr<StreamAbuse>(MemberCluster*)>& start) {
    const std::unique_ptr<StreamAbuse> abuse = start(cluster_.get());
    ASSERT_NO_FATAL_FAILURE(Serve(kAbuse));
    for (const auto& [name, peak] : peak_) {
      ExpectGrowth(*abuse, name, peak - before_[name]);
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

// Goal: a router that cannot get rid of results holds a delta a sequence, not one a token. Method:
// workers stand still until all prompts are there, then the gateway does while they run.
TEST_F(StreamAbuseTest, ARouterWhoseGatewayStandsStillJoinsWhatWaits) {
  const auto signal = [&](int number) {
    for (const char* worker : {"worker-0", "worker-1"}) cluster_->Signal(worker, number);
  };
  const auto router = [&](const char* metric) { return cluster_->Metric("router", metric); };
  const double opened = router("lockstep_router_opened_total");
  const std::unique_ptr<StreamAbuse> abuse = StartHalfClose(cluster_.get());
  signal(SIGSTOP);
  const auto all_opened = [&] { return router("lockstep_router_opened_total") > opened + kSlots; };
  EXPECT_TRUE(cli::WaitUntil(all_opened, kPatience));
  // Less than half of them were done before the workers stood still.
  EXPECT_GT(router("lockstep_router_sequences"), kSlots / 2);
  cluster_->Signal("gateway", SIGSTOP);
  signal(SIGCONT);
  EXPECT_TRUE(cli::WaitUntil([&] { return router("lockstep_router_sequences") == 0; }, kPatience));
  ExpectGrowth(*abuse, "router", MemoryOf(*cluster_).at("router") - before_["router"]);
  cluster_->Signal("gateway", SIGCONT);
  const absl::Status stopped = abuse->Stop();
  EXPECT_TRUE(stopped.ok()) << stopped;
}

TEST_F(StreamAbuseTest, ReadersOfAByteASecondTakeBoundedMemoryAndLoseNothing) {
  ExpectBounded(StartSlowReaders);
}

TEST_F(StreamAbuseTest, AnswersLargerThanTheClientTakesDoNotAddUp) {
  ExpectBounded(StartLargeAnswers);
}

}  // namespace
}  // namespace lockstep::testing
