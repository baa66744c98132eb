#include "services/scheduler/core_host.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/log/sink.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/scheduler/scheduler_wire.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using absl::StatusCode;

class NoLog final : public log::LogSink {
 public:
  void Write(std::string_view) override {}
};

// Keeps calls instead of making them.
class FakeControl final : public WorkerControl {
 public:
  explicit FakeControl(std::vector<Done>* calls) : calls_(calls) {}
  void Call(const ControlCall&, absl::Duration, Done done) override {
    calls_->push_back(std::move(done));
  }
  void Forget(const std::string&) override {}

 private:
  std::vector<Done>* const calls_;
};

struct FakeRouter final : AdmitSink {
  void Send(v1::AdmitEvent event) override { events.push_back(std::move(event)); }
  void Close(absl::Status status) override { closed = std::move(status); }
  std::vector<v1::AdmitEvent> events;
  absl::Status closed;
};

struct FakeWatch final : WatchSink {
  void Send(std::shared_ptr<const v1::WorkerSnapshot> snapshot) override {
    snapshots.push_back(std::move(snapshot));
  }
  void Close(absl::Status) override {}
  std::vector<std::shared_ptr<const v1::WorkerSnapshot>> snapshots;
};

class CoreHostTest : public testing::Test {
 protected:
  CoreHostTest() {
    host_ = std::make_shared<CoreHost>(
        CoreHost::Deps{.cluster_id = "c",
                       .core = *SchedulerCore::Create({.advance_tickets = 2}, &clock_, &store_),
                       .control = std::make_unique<FakeControl>(&calls_),
                       .control_timeout = absl::Seconds(3),
                       .metrics = &metrics_,
                       .clock = &clock_,
                       .logger = log::Logger({.service = "scheduler"}, &clock_, &log_)});
  }
  void Join() {
    v1::RegisterRequest request;
    request.set_cluster_id("c");
    request.set_worker_id("w");
    request.set_incarnation(1);
    request.set_address("w:1");
    request.mutable_fingerprint()->set_split_kv_size(64);
    request.mutable_capacity()->set_kv_blocks(100);
    request.mutable_capacity()->set_kv_block_tokens(16);
    request.mutable_capacity()->set_sequences_max(64);
    request.mutable_capacity()->set_context_tokens_max(1600);
    ASSERT_TRUE(host_->Register(request, absl::Seconds(3)).ok());
  }
  void Admit(RouterStream stream, uint64_t handle, int64_t length) {
    v1::AdmitCommand command;
    v1::AdmitRequest* request = command.add_requests();
    request->set_handle(handle);
    request->set_length(length);
    request->set_prompt_tokens(length);
    request->set_prefix_hash(handle);
    request->set_deadline_seconds(60);
    *request->add_candidates() = EncodeWorker("c", NameOf("w"));
    host_->OnAdmitCommand(stream, command);
  }
  void Pass(absl::Duration duration) {
    for (absl::Duration done; done < duration; done += absl::Milliseconds(100)) {
      clock_.Advance(absl::Milliseconds(100));
      host_->Tick();
    }
  }

  base::SimClock clock_;
  MemoryStore store_;
  NoLog log_;
  metrics::Registry registry_;
  SchedulerMetrics metrics_{&registry_};
  std::vector<WorkerControl::Done> calls_;
  std::shared_ptr<CoreHost> host_;
};

TEST_F(CoreHostTest, ALeaseEndsByTheFaultThatItsWorkerNames) {
  v1::LeaveRequest leave;
  *leave.mutable_worker() = EncodeWorker("c", NameOf("w"));
  leave.set_drain(true);
  leave.set_fault(v1::WORKER_FAULT_BITS);
  Join();
  const absl::Status refused = host_->Leave(leave).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "fault = 2: a worker that drains has none");
  host_->Tick();
  EXPECT_EQ(metrics_.workers.value(), 1);
  leave.set_drain(false);
  ASSERT_TRUE(host_->Leave(leave).ok());
  host_->Tick();
  EXPECT_EQ(metrics_.leases_ended[LeaseEnd::kWrongBits].value(), 1);
  EXPECT_EQ(metrics_.workers.value(), 0);
}

TEST_F(CoreHostTest, TicketUsedAndEndedSinceTheLastCommandCountsOnceAndMakesRoom) {
  Join();
  FakeRouter router, other;
  const RouterStream stream = *host_->OpenRouter("r1", &router);
  ASSERT_TRUE(host_->OpenRouter("r2", &other).ok());
  Admit(stream, 7, 16);
  ASSERT_EQ(router.events.size(), 2u);
  ASSERT_EQ(router.events[1].advance_tickets_size(), 2);
  EXPECT_EQ(other.events.size(), 1u);
  const v1::AdvanceTicket& ahead = router.events[1].advance_tickets(0);
  EXPECT_EQ(ahead.ticket().worker().worker_id(), "w");
  EXPECT_EQ(ahead.ticket().plan().split_kv_size(), 64);
  EXPECT_GT(ahead.tokens_max(), 0);
  v1::AdmitCommand command;
  v1::AdmitRequest* used = command.add_used();
  used->set_used_ticket_id(ahead.ticket().ticket_id());
  used->set_length(16);
  used->set_prompt_tokens(16);
  command.add_released_tickets(ahead.ticket().ticket_id());
  host_->OnAdmitCommand(stream, command);
  EXPECT_EQ(metrics_.admissions_ahead.value(), 1);
  EXPECT_EQ(metrics_.admissions.value(), 2);
  EXPECT_EQ(host_->GetState()->running_sequences(), 1);
  ASSERT_EQ(router.events.size(), 3u);
  EXPECT_EQ(router.events[2].advance_tickets_size(), 1);
}

TEST_F(CoreHostTest, OutcomesReachTheirRouterAndLostWorkersReachAll) {
  Join();
  FakeRouter one, two;
  const RouterStream first = *host_->OpenRouter("r1", &one);
  ASSERT_TRUE(host_->OpenRouter("r2", &two).ok());
  ASSERT_EQ(two.events.size(), 1u);  // The epoch, at once.
  EXPECT_GT(two.events[0].admission_epoch(), 0u);
  Admit(first, 7, 16);
  ASSERT_EQ(one.events.size(), 2u);
  EXPECT_EQ(one.events[1].outcomes(0).handle(), 7u);
  EXPECT_EQ(two.events.size(), 1u);
  Pass(absl::Seconds(3));
  ASSERT_EQ(one.events.size(), 3u);
  ASSERT_EQ(two.events.size(), 2u);
  EXPECT_EQ(one.events[2].lost_workers(0).worker_id(), "w");
  EXPECT_EQ(two.events[1].lost_workers(0).worker_id(), "w");
}

TEST_F(CoreHostTest, MetricsFollowTheCore) {
  Join();
  FakeRouter router;
  const RouterStream stream = *host_->OpenRouter("r", &router);
  Admit(stream, 1, 1500);
  Admit(stream, 2, 1500);
  Admit(stream, 3, 9999);
  host_->Tick();
  EXPECT_EQ(metrics_.admissions.value(), 1);
  EXPECT_EQ(metrics_.wait_seconds.count(), 1u);
  EXPECT_EQ(metrics_.refusals[StatusCode::kInvalidArgument].value(), 1);
  EXPECT_EQ(metrics_.queued_sequences.value(), 1);
  EXPECT_EQ(metrics_.running_sequences.value(), 1);
  EXPECT_EQ(metrics_.workers.value(), 1);
  EXPECT_EQ(metrics_.kv_blocks.value(), 100);
  EXPECT_EQ(metrics_.kv_blocks_reserved.value(), 94);
  EXPECT_EQ(metrics_.routers.value(), 1);
  v1::HeartbeatRequest heartbeat;
  *heartbeat.mutable_worker() = EncodeWorker("c", NameOf("w"));
  heartbeat.add_cuts()->set_end(64);
  EXPECT_EQ(host_->Heartbeat(heartbeat).status().code(), StatusCode::kFailedPrecondition);
  host_->CloseRouter(stream);
  host_->Tick();
  EXPECT_EQ(metrics_.plan_violations.value(), 1);
  EXPECT_EQ(metrics_.leases_ended[LeaseEnd::kRevoked].value(), 1);
  // Idle: the gauges are back.
  EXPECT_EQ(metrics_.queued_sequences.value(), 0);
  EXPECT_EQ(metrics_.running_sequences.value(), 0);
  EXPECT_EQ(metrics_.kv_blocks_reserved.value(), 0);
  EXPECT_EQ(metrics_.workers.value(), 0);
  EXPECT_EQ(metrics_.routers.value(), 0);
}

TEST_F(CoreHostTest, SnapshotsComeAtOnceAndOnlyOnChange) {
  FakeWatch watch;
  ASSERT_TRUE(host_->OpenWatch(&watch).ok());
  ASSERT_EQ(watch.snapshots.size(), 1u);
  EXPECT_EQ(watch.snapshots[0]->workers_size(), 0);
  Join();
  host_->Tick();
  const size_t after_join = watch.snapshots.size();
  EXPECT_EQ(watch.snapshots.back()->workers_size(), 1);
  Pass(absl::Seconds(1));
  EXPECT_EQ(watch.snapshots.size(), after_join);
  FakeRouter router;
  Admit(*host_->OpenRouter("r", &router), 1, 160);
  Pass(absl::Milliseconds(300));
  ASSERT_EQ(watch.snapshots.size(), after_join + 1);
  EXPECT_EQ(watch.snapshots.back()->workers(0).running_sequences(), 1);
  EXPECT_EQ(watch.snapshots.back()->workers(0).kv_blocks_free(), 90);
  EXPECT_GT(watch.snapshots.back()->revision(), watch.snapshots[0]->revision());
}

TEST_F(CoreHostTest, OperationEndsWhenItsWorkersAnsweredAndLateAnswersAreHarmless) {
  Join();
  std::vector<OperationResult> results;
  const auto flush = [&] {
    return host_->Operate(
        [](SchedulerCore& core) -> absl::StatusOr<OperationId> {
          return core.FlushCache(std::nullopt);
        },
        [&](const OperationResult& result) { results.push_back(result); });
  };
  ASSERT_TRUE(flush().ok());
  ASSERT_EQ(calls_.size(), 1u);
  EXPECT_TRUE(results.empty());
  calls_[0](ControlReply{.freed_blocks = 9});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].freed_blocks, 9);
  ASSERT_TRUE(flush().ok());
  const WorkerControl::Done late = calls_[1];
  host_.reset();
  late(ControlReply{});
  EXPECT_EQ(results.size(), 1u);
}

TEST_F(CoreHostTest, ClosedHostEndsStreamsAndRefusesNewOnes) {
  FakeRouter router;
  ASSERT_TRUE(host_->OpenRouter("r", &router).ok());
  host_->CloseAll(absl::UnavailableError("shuts down"));
  EXPECT_EQ(router.closed.code(), StatusCode::kUnavailable);
  FakeRouter late;
  EXPECT_EQ(host_->OpenRouter("r2", &late).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep::scheduler
