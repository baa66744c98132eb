// The shell over loopback: a real router between a scripted gateway, scheduler and workers.

#include "services/router/router_server.h"

#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/router/fake_cluster.h"

namespace lockstep::router {
namespace {

std::vector<uint32_t> Counting(size_t count) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 1000u);
  return ids;
}

std::unique_ptr<RouterServer> StartRouter(int scheduler_port) {
  config::v1::RouterConfig config;
  config.mutable_server()->set_listen("127.0.0.1:0");
  config.mutable_server()->set_cluster_id("test");
  config.mutable_server()->set_plaintext(true);
  config.mutable_server()->set_log_level("error");
  config.set_scheduler(absl::StrCat("127.0.0.1:", scheduler_port));
  config.set_router_id("router-1");
  auto server = RouterServer::Start(config);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(RouterServerTest, RoutesManySequencesAndReleasesEveryTicket) {
  FakeWorker a("a"), b("b");
  FakeScheduler scheduler({a.state(), b.state()});
  const auto router = StartRouter(scheduler.port());
  FakeGateway gateway(router->port());
  constexpr uint64_t kCount = 200;
  v1::RouteCommand opens;
  for (uint64_t i = 1; i <= kCount; ++i) FakeGateway::AddOpen(i, 5, &opens);
  gateway.Send(std::move(opens));
  for (uint64_t i = 1; i <= kCount; ++i) ASSERT_EQ(gateway.WaitForEnd(i), Counting(5));
  gateway.received.With([](auto& received) {
    for (uint64_t i = 1; i <= kCount; ++i) EXPECT_EQ(received.entry_epochs[i], kFakeEpoch);
  });
  EXPECT_TRUE(scheduler.seen.WaitFor(
      [](const FakeScheduler::Seen& seen) { return seen.released.size() == kCount; }));
  for (FakeWorker* worker : {&a, &b}) {
    const size_t share = worker->seen.With([](auto& seen) { return seen.starts.size(); });
    EXPECT_GE(share, kCount * 2 / 5);
  }
  scheduler.seen.With([](auto& seen) { EXPECT_EQ(seen.router_id, "router-1"); });
}

TEST(RouterServerTest, KilledWorkersSequenceGoesOnElsewhere) {
  FakeWorker a("a", /*pause_at=*/3), b("b", /*pause_at=*/3);
  FakeScheduler scheduler({a.state(), b.state()});
  auto router = StartRouter(scheduler.port());
  FakeGateway gateway(router->port());
  gateway.Open(1, 10);
  ASSERT_TRUE(gateway.received.WaitFor([](const auto& r) {
    const auto it = r.ids.find(1);
    return it != r.ids.end() && it->second.size() == 3;
  }));
  const bool on_a = a.seen.With([](auto& seen) { return !seen.starts.empty(); });
  FakeWorker& other = on_a ? b : a;
  (on_a ? a : b).Kill();
  ASSERT_TRUE(other.seen.WaitFor([](const auto& seen) { return !seen.starts.empty(); }));
  other.seen.With([](auto& seen) {
    EXPECT_EQ(seen.starts[0].sequence().generated_ids_size(), 3);
    EXPECT_EQ(seen.starts[0].sequence().deliver_output_from(), 3);
    EXPECT_EQ(seen.starts[0].ticket().attempt(), 2);
  });
}

TEST(RouterServerTest, WorkerThatTheSchedulerGivesUpIsLeftThoughItsStreamLives) {
  FakeWorker a("a", /*pause_at=*/3);
  FakeWorker b("b", /*pause_at=*/3);
  FakeScheduler scheduler({a.state(), b.state()});
  const auto router = StartRouter(scheduler.port());
  FakeGateway gateway(router->port());
  gateway.Open(1, 10);
  ASSERT_TRUE(gateway.received.WaitFor([](const auto& r) {
    const auto it = r.ids.find(1);
    return it != r.ids.end() && it->second.size() == 3;
  }));
  const bool on_a = a.seen.With([](auto& seen) { return !seen.starts.empty(); });
  FakeWorker& other = on_a ? b : a;
  scheduler.LoseWorker((on_a ? a : b).state().worker());
  EXPECT_TRUE(other.seen.WaitFor([](const auto& seen) { return !seen.starts.empty(); }));
}

TEST(RouterServerTest, CreditAndCancelReachTheWorker) {
  FakeWorker a("a", /*pause_at=*/3);
  FakeScheduler scheduler({a.state()});
  const auto router = StartRouter(scheduler.port());
  FakeGateway gateway(router->port());
  gateway.Open(1, 10);
  ASSERT_TRUE(a.seen.WaitFor([](const auto& seen) { return !seen.starts.empty(); }));
  v1::RouteCommand command;
  command.add_credit()->set_handle(1);
  command.mutable_credit(0)->set_tokens(17);
  gateway.Send(command);
  EXPECT_TRUE(a.seen.WaitFor([](const auto& seen) { return seen.credit == 17; }));
  command.Clear();
  command.add_cancel()->set_handle(1);
  gateway.Send(command);
  gateway.WaitForEnd(1);
  gateway.received.With([](auto& r) { EXPECT_EQ(r.ends[1].reason(), v1::FINISH_REASON_ABORT); });
  EXPECT_TRUE(a.seen.WaitFor([](const auto& seen) { return seen.cancels.size() == 1; }));
}

TEST(RouterServerTest, GatewayThatGoesLeavesNothingRunning) {
  FakeWorker a("a", /*pause_at=*/3);
  FakeScheduler scheduler({a.state()});
  const auto router = StartRouter(scheduler.port());
  {
    FakeGateway gateway(router->port());
    for (uint64_t i = 1; i <= 10; ++i) gateway.Open(i, 10);
    ASSERT_TRUE(a.seen.WaitFor([](const auto& seen) { return seen.starts.size() == 10; }));
  }
  EXPECT_TRUE(a.seen.WaitFor([](const auto& seen) { return seen.cancels.size() == 10; }));
  EXPECT_TRUE(scheduler.seen.WaitFor([](const auto& seen) { return seen.released.size() == 10; }));
}

TEST(RouterServerTest, SchedulerRestartLosesNoAdmission) {
  FakeWorker a("a");
  auto scheduler = std::make_unique<FakeScheduler>(std::vector{a.state()});
  const int port = scheduler->port();
  const auto router = StartRouter(port);
  FakeGateway gateway(router->port());
  scheduler->HoldGrants();
  gateway.Open(1, 5);
  ASSERT_TRUE(scheduler->seen.WaitFor([](const auto& seen) { return seen.requests.size() == 1; }));
  scheduler.reset();
  gateway.Open(2, 5);
  scheduler = std::make_unique<FakeScheduler>(std::vector{a.state()}, port);
  EXPECT_EQ(gateway.WaitForEnd(1), Counting(5));
  EXPECT_EQ(gateway.WaitForEnd(2), Counting(5));
}

// Refuses every stream, as one with another cluster_id does, and keeps when they came.
class RefusingScheduler {
 public:
  RefusingScheduler() {
    auto server = rpc::Server::Start({.address = "127.0.0.1:0"}, {&service_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  Watched<std::vector<absl::Time>> admits;

 private:
  class Admit final : public rpc::BidiHandler<v1::AdmitCommand, v1::AdmitEvent> {
   public:
    explicit Admit(grpc::CallbackServerContext* context) : BidiHandler(context) {}

   private:
    void Start() override { Finish(absl::FailedPreconditionError("another cluster")); }
    void OnMessage(v1::AdmitCommand&) override {}
    void OnHalfClose() override {}
  };
  class Service final : public v1::SchedulerService::CallbackService {
   public:
    explicit Service(RefusingScheduler* owner) : owner_(owner) {}
    grpc::ServerBidiReactor<v1::AdmitCommand, v1::AdmitEvent>* Admit(
        grpc::CallbackServerContext* context) override {
      owner_->admits.With([](auto& times) { times.push_back(absl::Now()); });
      return rpc::StartHandler<RefusingScheduler::Admit>(context);
    }

   private:
    RefusingScheduler* const owner_;
  };
  Service service_{this};
  std::unique_ptr<rpc::Server> server_;
};

TEST(RouterServerTest, SchedulerThatRefusesIsAskedLessAndLess) {
  RefusingScheduler scheduler;
  const auto router = StartRouter(scheduler.port());
  ASSERT_TRUE(scheduler.admits.WaitFor([](const auto& times) { return times.size() == 7; }));
  scheduler.admits.With([](const auto& times) {
    // Pauses of 0, 50, 100, 200, 400 and 800 ms; a call may take a little on its way.
    EXPECT_GT(times[6] - times[0], absl::Milliseconds(1400));
    EXPECT_GT(times[6] - times[5], times[3] - times[0]);
  });
}

TEST(RouterServerTest, DrainEndsWhenNothingRunsAndGatewaysSeeACleanEnd) {
  FakeWorker a("a");
  FakeScheduler scheduler({a.state()});
  const auto router = StartRouter(scheduler.port());
  FakeGateway gateway(router->port());
  gateway.Open(1, 5);
  EXPECT_EQ(gateway.WaitForEnd(1), Counting(5));
  router->Drain(absl::Now() + absl::Seconds(20));
  EXPECT_TRUE(gateway.received.WaitFor([](const auto& r) { return r.closed; }));
  gateway.received.With([](auto& r) { EXPECT_TRUE(r.status.ok()) << r.status; });
}

TEST(RouterServerTest, BadConfigurationNamesTheField) {
  config::v1::RouterConfig config;
  config.mutable_server()->set_listen("127.0.0.1:0");
  config.mutable_server()->set_cluster_id("test");
  config.mutable_server()->set_plaintext(true);
  config.set_scheduler("127.0.0.1:1");
  EXPECT_NE(RouterServer::Start(config).status().message().find("router_id"), std::string::npos);
  config.set_router_id("r");
  config.set_candidates_max(5);
  const absl::Status status = RouterServer::Start(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("candidates_max"), std::string::npos);
}

TEST(RouterServerTest, HowConnectionsAreProtectedHasToBeChosen) {
  config::v1::RouterConfig config;
  config.mutable_server()->set_listen("127.0.0.1:0");
  config.mutable_server()->set_cluster_id("test");
  config.set_scheduler("127.0.0.1:1");
  config.set_router_id("r");
  const auto error = [&config] {
    return std::string(RouterServer::Start(config).status().message());
  };
  EXPECT_EQ(error(), "server: either tls or plaintext has to be chosen");
  config::v1::TlsConfig* tls = config.mutable_server()->mutable_tls();
  EXPECT_EQ(error(), "server.tls.certificate_file: required, but not set");
  tls->set_certificate_file("/nonexistent/router.pem");
  tls->set_key_file("/nonexistent/router.key");
  tls->set_authorities_file("/nonexistent/authorities.pem");
  EXPECT_EQ(error(), "/nonexistent/authorities.pem: cannot be opened");
  tls->set_reload_seconds(0.5);
  EXPECT_EQ(error(), "server.tls.reload_seconds: 0.5 is outside [1, 3600] seconds");
  config.mutable_server()->set_plaintext(true);
  tls->clear_reload_seconds();
  EXPECT_EQ(error(), "server: either tls or plaintext has to be chosen");
}

}  // namespace
}  // namespace lockstep::router
