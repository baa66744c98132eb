#include "services/scheduler/scheduler_server.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lockstep/v1/scheduler.grpc.pb.h"
#include "lockstep/v1/worker.grpc.pb.h"

// The real server on loopback, with clients made of plain stubs.
namespace lockstep::scheduler {
namespace {

using testing::HasSubstr;

// Answers Control like a worker with one sequence.
class FakeWorker final : public v1::WorkerService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Control(grpc::CallbackServerContext* context,
                                    const v1::ControlRequest* request,
                                    v1::ControlResponse* response) override {
    {
      base::MutexLock lock(&mutex_);
      last_ = *request;
    }
    response->set_aborted_sequences(1);
    response->set_freed_blocks(12);
    for (const std::string& id : request->abort_request_ids()) response->add_known_request_ids(id);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  v1::ControlRequest last() const {
    base::MutexLock lock(&mutex_);
    return last_;
  }

 private:
  mutable base::Mutex mutex_;
  v1::ControlRequest last_ ABSL_GUARDED_BY(mutex_);
};

class SchedulerServerTest : public testing::Test {
 protected:
  SchedulerServerTest() : folder_(testing::TempDir() + "scheduler_server_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    worker_server_ = *rpc::Server::Start({.address = "127.0.0.1:0"}, {&worker_});
    Start();
  }
  ~SchedulerServerTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  config::v1::SchedulerConfig Config() const {
    config::v1::SchedulerConfig config;
    config.mutable_server()->set_listen("127.0.0.1:0");
    config.mutable_server()->set_cluster_id("c");
    config.mutable_server()->set_plaintext(true);
    config.mutable_server()->set_log_level("error");
    config.set_state_file(folder_ + "/state");
    config.set_lease_seconds(0.5);
    return config;
  }
  void Start() {
    server_.reset();
    auto server = SchedulerServer::Start(*ReadSchedulerOptions(Config()));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::SchedulerService::NewStub(
        rpc::MakeChannel(absl::StrCat("127.0.0.1:", server_->port())));
  }
  v1::RegisterRequest Registration(uint64_t incarnation = 1) const {
    v1::RegisterRequest request;
    request.set_cluster_id("c");
    request.set_worker_id("w");
    request.set_incarnation(incarnation);
    request.set_address(absl::StrCat("127.0.0.1:", worker_server_->port()));
    request.mutable_fingerprint()->set_backend("cpu");
    request.mutable_fingerprint()->set_split_kv_size(64);
    request.mutable_capacity()->set_kv_blocks(100);
    request.mutable_capacity()->set_kv_block_tokens(16);
    request.mutable_capacity()->set_sequences_max(64);
    request.mutable_capacity()->set_context_tokens_max(1600);
    request.mutable_model()->set_name("tiny");
    return request;
  }
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::SchedulerService::Stub::*method)(grpc::ClientContext*,
                                                                       const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    return (stub_.get()->*method)(&context, request, response);
  }
  grpc::Status Register(const v1::RegisterRequest& request) {
    return Call(&v1::SchedulerService::Stub::Register, request, &registered_);
  }
  v1::GetStateResponse State() {
    v1::GetStateResponse response;
    EXPECT_TRUE(Call(&v1::SchedulerService::Stub::GetState, v1::GetStateRequest(), &response).ok());
    return response;
  }
  v1::WorkerIdentity Worker(uint64_t incarnation = 1) const {
    v1::WorkerIdentity worker;
    worker.set_cluster_id("c");
    worker.set_worker_id("w");
    worker.set_incarnation(incarnation);
    return worker;
  }
  // First message of a router, with one request for `length` tokens.
  v1::AdmitCommand Command(uint64_t handle, int64_t length) const {
    v1::AdmitCommand command;
    command.set_router_id("r1");
    command.set_cluster_id("c");
    v1::AdmitRequest* request = command.add_requests();
    request->set_handle(handle);
    request->set_sequence_id(absl::StrCat("s", handle, "/0"));
    request->set_request_id(absl::StrCat("s", handle));
    request->set_group_id(absl::StrCat("s", handle));
    request->set_length(length);
    request->set_prompt_tokens(length);
    request->set_new_tokens_max(16);
    request->set_prefix_hash(handle);
    request->set_entry_epoch(registered_.admission_epoch());
    request->set_deadline_seconds(30);
    *request->add_candidates() = Worker();
    return command;
  }
  using AdmitStream = grpc::ClientReaderWriter<v1::AdmitCommand, v1::AdmitEvent>;
  // The next event that has an outcome.
  static v1::AdmitEvent NextOutcome(AdmitStream& stream) {
    v1::AdmitEvent event;
    while (stream.Read(&event)) {
      if (event.outcomes_size() > 0) return event;
    }
    return {};
  }

  const std::string folder_;
  FakeWorker worker_;
  std::unique_ptr<rpc::Server> worker_server_;
  std::unique_ptr<SchedulerServer> server_;
  std::unique_ptr<v1::SchedulerService::Stub> stub_;
  v1::RegisterResponse registered_;
};

TEST_F(SchedulerServerTest, AdmitsOverAStreamAndTakesTicketsBack) {
  ASSERT_TRUE(Register(Registration()).ok());
  EXPECT_EQ(registered_.lease_seconds(), 0.5);
  grpc::ClientContext context;
  const auto stream = stub_->Admit(&context);
  ASSERT_TRUE(stream->Write(Command(1, 1400)));
  const v1::Ticket ticket = NextOutcome(*stream).outcomes(0).ticket();
  EXPECT_EQ(ticket.worker().worker_id(), "w");
  EXPECT_EQ(ticket.plan().length(), 1400);
  EXPECT_EQ(ticket.plan().split_kv_size(), 64);
  v1::AdmitCommand next = Command(2, 1400);
  ASSERT_TRUE(stream->Write(next));
  next.Clear();
  next.add_released_tickets(ticket.ticket_id());
  ASSERT_TRUE(stream->Write(next));
  const v1::AdmitOutcome second = NextOutcome(*stream).outcomes(0);
  EXPECT_EQ(second.handle(), 2u);
  EXPECT_NE(second.ticket().ticket_id(), ticket.ticket_id());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(SchedulerServerTest, LostStreamDropsItsQueue) {
  ASSERT_TRUE(Register(Registration()).ok());
  grpc::ClientContext context;
  const auto stream = stub_->Admit(&context);
  ASSERT_TRUE(stream->Write(Command(1, 1400)));
  NextOutcome(*stream);
  ASSERT_TRUE(stream->Write(Command(2, 1400)));
  while (State().queued_sequences() == 0) {
  }
  context.TryCancel();
  while (State().queued_sequences() != 0) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(SchedulerServerTest, SilentWorkerIsLostToRoutersAndWatchers) {
  ASSERT_TRUE(Register(Registration()).ok());
  grpc::ClientContext watch_context;
  v1::WatchWorkersRequest watch;
  watch.set_cluster_id("c");
  const auto snapshots = stub_->WatchWorkers(&watch_context, watch);
  v1::WorkerSnapshot snapshot;
  ASSERT_TRUE(snapshots->Read(&snapshot));
  ASSERT_EQ(snapshot.workers_size(), 1);
  EXPECT_EQ(snapshot.workers(0).kv_blocks(), 100);
  grpc::ClientContext context;
  const auto stream = stub_->Admit(&context);
  ASSERT_TRUE(stream->Write(Command(1, 16)));
  v1::AdmitEvent event;
  while (event.lost_workers_size() == 0) ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.lost_workers(0).incarnation(), 1u);
  while (snapshot.workers_size() > 0) ASSERT_TRUE(snapshots->Read(&snapshot));
  v1::HeartbeatRequest heartbeat;
  *heartbeat.mutable_worker() = Worker();
  v1::HeartbeatResponse answer;
  EXPECT_EQ(Call(&v1::SchedulerService::Stub::Heartbeat, heartbeat, &answer).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  context.TryCancel();
  watch_context.TryCancel();
}

TEST_F(SchedulerServerTest, AbortReachesWorkersAndCountsWhatTheyEnded) {
  ASSERT_TRUE(Register(Registration()).ok());
  v1::AbortRequest request;
  request.add_request_ids("known");
  v1::AbortResponse response;
  ASSERT_TRUE(Call(&v1::SchedulerService::Stub::Abort, request, &response).ok());
  EXPECT_EQ(response.aborted_sequences(), 1);
  EXPECT_EQ(response.unknown_requests(), 0);
  EXPECT_EQ(worker_.last().abort_request_ids(0), "known");
  EXPECT_EQ(worker_.last().scheduler_epoch(), registered_.scheduler_epoch());
  request.Clear();
  request.set_all(true);
  ASSERT_TRUE(Call(&v1::SchedulerService::Stub::Abort, request, &response).ok());
  EXPECT_TRUE(worker_.last().abort_all());
  EXPECT_GT(response.epoch(), registered_.admission_epoch());
  EXPECT_EQ(worker_.last().admission_epoch(), response.epoch());
}

TEST_F(SchedulerServerTest, DeadWorkerIsListedAsSilent) {
  ASSERT_TRUE(Register(Registration()).ok());
  worker_server_->Shutdown();
  std::thread beats([&] {
    v1::HeartbeatRequest heartbeat;
    *heartbeat.mutable_worker() = Worker();
    heartbeat.set_idle(true);
    v1::HeartbeatResponse answer;
    while (Call(&v1::SchedulerService::Stub::Heartbeat, heartbeat, &answer).ok()) {
    }
  });
  v1::AbortRequest request;
  request.set_all(true);
  v1::AbortResponse response;
  ASSERT_TRUE(Call(&v1::SchedulerService::Stub::Abort, request, &response).ok());
  ASSERT_EQ(response.silent_workers_size(), 1);
  EXPECT_EQ(response.silent_workers(0), "w");
  beats.join();
}

TEST_F(SchedulerServerTest, PauseAndResumeAndFlushAnswer) {
  ASSERT_TRUE(Register(Registration()).ok());
  v1::PauseRequest pause;
  pause.set_mode(v1::PAUSE_MODE_KEEP);
  v1::PauseResponse paused;
  ASSERT_TRUE(Call(&v1::SchedulerService::Stub::Pause, pause, &paused).ok());
  EXPECT_TRUE(worker_.last().hold());
  EXPECT_TRUE(State().paused());
  EXPECT_EQ(State().pause_mode(), v1::PAUSE_MODE_KEEP);
  v1::ResumeResponse resumed;
  ASSERT_TRUE(Call(&v1::SchedulerService::Stub::Resume, v1::ResumeRequest(), &resumed).ok());
  EXPECT_FALSE(worker_.last().hold());
  EXPECT_GT(resumed.epoch(), paused.epoch());
  v1::FlushCacheRequest flush;
  flush.set_cache_namespace("ns");
  v1::FlushCacheResponse flushed;
  ASSERT_TRUE(Call(&v1::SchedulerService::Stub::FlushCache, flush, &flushed).ok());
  EXPECT_EQ(flushed.freed_blocks(), 12);
  EXPECT_EQ(worker_.last().flush_namespace(), "ns");
}

TEST_F(SchedulerServerTest, ForeignClusterAndMissingDeadlineAreRefused) {
  v1::RegisterRequest foreign = Registration();
  foreign.set_cluster_id("other");
  const grpc::Status refused = Register(foreign);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("\"other\""));
  grpc::ClientContext endless;
  EXPECT_EQ(stub_->Register(&endless, Registration(), &registered_).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  const auto stream = stub_->Admit(&context);
  v1::AdmitCommand command = Command(1, 16);
  command.set_cluster_id("other");
  ASSERT_TRUE(stream->Write(command));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(SchedulerServerTest, ClusterInfoComesFromTheWorkers) {
  v1::GetClusterInfoRequest request;
  request.set_cluster_id("c");
  v1::GetClusterInfoResponse info;
  EXPECT_EQ(Call(&v1::SchedulerService::Stub::GetClusterInfo, request, &info).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(Register(Registration()).ok());
  ASSERT_TRUE(Call(&v1::SchedulerService::Stub::GetClusterInfo, request, &info).ok());
  EXPECT_EQ(info.fingerprint().backend(), "cpu");
  EXPECT_EQ(info.model().name(), "tiny");
  EXPECT_EQ(info.context_tokens_max(), 1600);
  EXPECT_EQ(info.kv_blocks_largest_worker(), 100);
  ASSERT_EQ(info.workers_size(), 1);
}

TEST_F(SchedulerServerTest, RestartedServerHasAHigherEpochAndKnowsNobody) {
  ASSERT_TRUE(Register(Registration()).ok());
  const uint64_t epoch = registered_.scheduler_epoch();
  EXPECT_EQ(SchedulerServer::Start(*ReadSchedulerOptions(Config())).status().code(),
            absl::StatusCode::kFailedPrecondition);  // The state file is in use.
  Start();
  v1::HeartbeatRequest heartbeat;
  *heartbeat.mutable_worker() = Worker();
  v1::HeartbeatResponse answer;
  EXPECT_EQ(Call(&v1::SchedulerService::Stub::Heartbeat, heartbeat, &answer).error_code(),
            grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(Register(Registration()).ok());
  EXPECT_EQ(registered_.scheduler_epoch(), epoch + 1);
}

TEST_F(SchedulerServerTest, DrainEndsStreams) {
  ASSERT_TRUE(Register(Registration()).ok());
  grpc::ClientContext context;
  const auto stream = stub_->Admit(&context);
  ASSERT_TRUE(stream->Write(Command(1, 16)));
  NextOutcome(*stream);
  server_->Drain(absl::Now() + absl::Seconds(5));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(SchedulerOptionsTest, RangesAreCheckedByName) {
  config::v1::SchedulerConfig config;
  config.mutable_server()->set_listen("127.0.0.1:0");
  config.mutable_server()->set_cluster_id("c");
  config.mutable_server()->set_plaintext(true);
  EXPECT_THAT(std::string(ReadSchedulerOptions(config).status().message()),
              HasSubstr("state_file"));
  config.set_state_file("/nowhere");
  EXPECT_EQ(ReadSchedulerOptions(config)->core.lease, absl::Seconds(3));
  config.set_overcommit_percent(401);
  EXPECT_THAT(std::string(ReadSchedulerOptions(config).status().message()),
              HasSubstr("overcommit_percent: 401"));
}

}  // namespace
}  // namespace lockstep::scheduler
