#include "common/metrics/metric.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/buckets.h"
#include "common/metrics/exposer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"

namespace lockstep::metrics {
namespace {

using testing::HasSubstr;

enum class Outcome { kFinished, kAborted };

struct TestMetrics {
  explicit TestMetrics(Registry* registry)
      : resumptions(registry, "lockstep_test_resumptions_total", "Sequences moved."),
        running(registry, "lockstep_test_running_sequences", "Sequences running now."),
        wait(registry, "lockstep_test_wait_seconds", "Time in the queue.", LatencySecondsBuckets()),
        ended(registry, "lockstep_test_sequences_total", "Sequences ended, by outcome.", "outcome",
              {"finished", "aborted"}),
        calls(registry, "lockstep_test_call_seconds", "Calls, by code.", "code", StatusCodeLabels(),
              RequestSecondsBuckets()) {}
  Counter resumptions;
  Gauge running;
  Histogram wait;
  CounterBy<Outcome> ended;
  HistogramBy<absl::StatusCode> calls;
};

TEST(MetricTest, ValuesCanBeReadDirectly) {
  Registry registry;
  TestMetrics metrics(&registry);
  EXPECT_EQ(metrics.resumptions.value(), 0);
  metrics.resumptions.Increment();
  metrics.resumptions.Increment(2);
  metrics.running.Set(5);
  metrics.running.Add(-2);
  metrics.wait.Observe(absl::Milliseconds(250));
  metrics.wait.Observe(2.0);
  metrics.ended[Outcome::kAborted].Increment();
  metrics.calls[absl::StatusCode::kUnavailable].Observe(absl::Seconds(1));
  EXPECT_EQ(metrics.resumptions.value(), 3);
  EXPECT_EQ(metrics.running.value(), 3);
  EXPECT_EQ(metrics.wait.count(), 2u);
  EXPECT_EQ(metrics.wait.sum(), 2.25);
  EXPECT_EQ(metrics.ended[Outcome::kFinished].value(), 0);
  EXPECT_EQ(metrics.ended[Outcome::kAborted].value(), 1);
  EXPECT_EQ(metrics.calls[absl::StatusCode::kUnavailable].count(), 1u);
}

TEST(MetricTest, EveryLabelValueIsExposedFromTheStart) {
  Registry registry;
  const TestMetrics metrics(&registry);
  const std::string text = registry.ToText();
  EXPECT_THAT(text, HasSubstr("lockstep_test_sequences_total{outcome=\"finished\"} 0"));
  EXPECT_THAT(text, HasSubstr("lockstep_test_sequences_total{outcome=\"aborted\"} 0"));
  EXPECT_THAT(text, HasSubstr("lockstep_test_call_seconds_count{code=\"ok\"} 0"));
  EXPECT_THAT(text, HasSubstr("# HELP lockstep_test_wait_seconds Time in the queue."));
  EXPECT_THAT(text, HasSubstr("lockstep_test_wait_seconds_bucket{le=\"0.001\"} 0"));
}

TEST(MetricTest, ConcurrentIncrementsAllCount) {
  Registry registry;
  TestMetrics metrics(&registry);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) metrics.resumptions.Increment();
        for (int i = 0; i < 1000; ++i) metrics.wait.Observe(1.0);
      });
    }
  }
  EXPECT_EQ(metrics.resumptions.value(), 4000);
  EXPECT_EQ(metrics.wait.count(), 4000u);
}

TEST(RegistryDeathTest, WrongOrDoubleNamesEndTheProcess) {
  Registry registry;
  const Counter first(&registry, "lockstep_test_a_total", "A.");
  EXPECT_DEATH(Counter(&registry, "lockstep_test_a_total", "A."), "registered twice");
  EXPECT_DEATH(Counter(&registry, "lockstep_test_b", "B."), "lockstep_test_b");
  EXPECT_DEATH(Gauge(&registry, "lockstep_test_c_total", "C."), "lockstep_test_c_total");
  EXPECT_DEATH(Gauge(&registry, "lockstep_Test_d", "D."), "lockstep_Test_d");
  EXPECT_DEATH(Gauge(&registry, "test_e", "E."), "test_e");
  EXPECT_DEATH(Gauge(&registry, "lockstep_test_f", ""), "lockstep_test_f");
  Counter counter = first;
  EXPECT_DEATH(counter.Increment(-1), "amount >= 0");
}

TEST(BucketsTest, PresetsAscendAndSpanTheirRanges) {
  for (const std::vector<double>& bounds : {RequestSecondsBuckets(), LatencySecondsBuckets(),
                                            StepSecondsBuckets(), PowerOfTwoBuckets(10)}) {
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]);
  }
  EXPECT_EQ(RequestSecondsBuckets().front(), 1e-3);
  EXPECT_EQ(RequestSecondsBuckets().back(), 500);
  EXPECT_EQ(LatencySecondsBuckets().front(), 1e-4);
  EXPECT_EQ(StepSecondsBuckets().front(), 1e-5);
  EXPECT_EQ(PowerOfTwoBuckets(10).back(), 1024);
}

TEST(BucketsTest, StatusCodeLabelsStandInTheOrderOfTheCodes) {
  const std::vector<std::string> labels = StatusCodeLabels();
  ASSERT_EQ(labels.size(), 17u);
  EXPECT_EQ(labels[static_cast<size_t>(absl::StatusCode::kOk)], "ok");
  EXPECT_EQ(labels[static_cast<size_t>(absl::StatusCode::kResourceExhausted)],
            "resource_exhausted");
  EXPECT_EQ(labels[static_cast<size_t>(absl::StatusCode::kUnauthenticated)], "unauthenticated");
}

TEST(ExposerTest, ServesTheRegistryOnAFreePortAndSharesItWithNobody) {
  Registry registry;
  TestMetrics metrics(&registry);
  metrics.resumptions.Increment(7);
  const auto exposer = Exposer::Start({.address = "127.0.0.1:0"}, registry);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  httplib::Client client("127.0.0.1", (*exposer)->port());
  const auto response = client.Get("/metrics");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_THAT(response->body, HasSubstr("lockstep_test_resumptions_total 7"));
  const std::string address = absl::StrCat("127.0.0.1:", (*exposer)->port());
  const absl::Status second = Exposer::Start({.address = address}, registry).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr(address));
}

TEST(ExposerTest, UnreadableAddressIsAStatus) {
  const Registry registry;
  for (const char* address :
       {"nowhere:x", "", ":", "7101", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:65536"}) {
    const absl::Status status = Exposer::Start({.address = address}, registry).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not host:port"));
  }
  EXPECT_EQ(Exposer::Start({.address = "192.0.2.1:0"}, registry).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// A connection that sends `first`, then a piece of what is no whole request every now and then.
class Dripping {
 public:
  Dripping(int port, std::string first, std::string piece)
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    Send(first);
    if (piece.empty()) return;
    thread_ = std::thread([this, piece] {
      base::MutexLock lock(&mutex_);
      while (!ending_) {
        Send(piece);
        wake_.WaitFor(&mutex_, absl::Milliseconds(100));
      }
    });
  }
  ~Dripping() {
    {
      base::MutexLock lock(&mutex_);
      ending_ = true;
      wake_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
    close(socket_);
  }

 private:
  void Send(const std::string& bytes) {
    (void)send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  const int socket_;
  base::Mutex mutex_;
  base::CondVar wake_;
  bool ending_ = false;
  std::thread thread_;
};

TEST(ExposerTest, NeitherScrapesNorItsEndWaitForPeersThatNeverAsk) {
  const Registry registry;
  auto exposer = Exposer::Start({.address = "127.0.0.1:0"}, registry);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const int port = (*exposer)->port();
  // More than answer at a time.
  std::vector<std::unique_ptr<Dripping>> peers;
  for (int i = 0; i < 4; ++i) {
    peers.push_back(std::make_unique<Dripping>(port, "", ""));
    peers.push_back(std::make_unique<Dripping>(port, "GET /metrics HTTP/1.1\r\n", "X-a: b\r\n"));
    peers.push_back(std::make_unique<Dripping>(port, "", std::string(1, '\0')));
  }
  // Their time is over twice before that of the scrape.
  httplib::Client client("127.0.0.1", port);
  client.set_read_timeout(12);
  EXPECT_TRUE(client.Get("/metrics"));
  peers.push_back(std::make_unique<Dripping>(port, "GET /metrics HTTP/1.1\r\n", "X-a: b\r\n"));
  ASSERT_TRUE(client.Get("/metrics"));
  const absl::Time begin = absl::Now();
  exposer->reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(4));
}

}  // namespace
}  // namespace lockstep::metrics
