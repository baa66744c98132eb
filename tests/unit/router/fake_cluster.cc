#include "tests/unit/router/fake_cluster.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_pool.h"
#include "gtest/gtest.h"

namespace lockstep::router {
namespace {

std::unique_ptr<rpc::Server> StartServer(int port, grpc::Service* service) {
  auto server = rpc::Server::Start({.address = absl::StrCat("127.0.0.1:", port)}, {service});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

}  // namespace

class FakeWorker::RunHandler final : public rpc::BidiHandler<v1::WorkerCommand, v1::WorkerFrame> {
 public:
  RunHandler(FakeWorker* owner, grpc::CallbackServerContext* context)
      : BidiHandler(context), owner_(owner) {}

 private:
  void Start() override { RequestRead(); }
  void OnHalfClose() override { Finish(absl::OkStatus()); }
  void OnMessage(v1::WorkerCommand& command) override {
    v1::WorkerFrame frame;
    for (const v1::WorkerStart& start : command.start()) Run(start, &frame);
    owner_->seen.With([&](Seen& seen) {
      for (const v1::WorkerStart& start : command.start()) seen.starts.push_back(start);
      for (const v1::WorkerCancel& cancel : command.cancel()) {
        seen.cancels.push_back(cancel.ticket_id());
      }
      for (const v1::Credit& credit : command.credit()) seen.credit += credit.tokens();
    });
    if (!frame.deltas().empty()) {
      EXPECT_EQ(Write(std::move(frame)), rpc::WriteResult::kAccepted);
    }
    RequestRead();
  }
  void Run(const v1::WorkerStart& start, v1::WorkerFrame* frame) {
    const int64_t max = start.sequence().parameters().stop().max_new_tokens();
    const int64_t end = std::min(max, owner_->pause_at_);
    for (int64_t i = start.sequence().generated_ids_size(); i < end; ++i) {
      v1::SequenceDelta* delta = frame->add_deltas();
      delta->set_handle(start.ticket().ticket_id());
      delta->set_token_begin(i);
      const uint32_t id = static_cast<uint32_t>(1000 + i);
      delta->mutable_token_ids()->assign(reinterpret_cast<const char*>(&id), sizeof(id));
      if (i + 1 == max) delta->mutable_end()->set_reason(v1::FINISH_REASON_LENGTH);
    }
  }

  FakeWorker* const owner_;
};

class FakeWorker::Service final : public v1::WorkerService::CallbackService {
 public:
  explicit Service(FakeWorker* owner) : owner_(owner) {}
  grpc::ServerBidiReactor<v1::WorkerCommand, v1::WorkerFrame>* Run(
      grpc::CallbackServerContext* context) override {
    return rpc::StartHandler<RunHandler>(owner_, context);
  }

 private:
  FakeWorker* const owner_;
};

FakeWorker::FakeWorker(std::string id, int64_t pause_at, int port)
    : id_(std::move(id)), pause_at_(pause_at), service_(std::make_unique<Service>(this)) {
  server_ = StartServer(port, service_.get());
}

v1::WorkerState FakeWorker::state() const {
  v1::WorkerState state;
  state.mutable_worker()->set_cluster_id("test");
  state.mutable_worker()->set_worker_id(id_);
  state.mutable_worker()->set_incarnation(1);
  state.set_address(absl::StrCat("127.0.0.1:", server_->port()));
  return state;
}

class FakeScheduler::AdmitHandler final
    : public rpc::BidiHandler<v1::AdmitCommand, v1::AdmitEvent> {
 public:
  AdmitHandler(FakeScheduler* owner, grpc::CallbackServerContext* context)
      : BidiHandler(context), owner_(owner) {}

 private:
  void Start() override {
    owner_->streams_.With([&](auto& streams) { streams.push_back(rpc::SharedFrom(this)); });
    RequestRead();
  }
  void OnHalfClose() override { Finish(absl::OkStatus()); }
  void OnMessage(v1::AdmitCommand& command) override {
    v1::AdmitEvent event;
    owner_->seen.With([&](Seen& seen) {
      if (!command.router_id().empty()) seen.router_id = command.router_id();
      seen.released.insert(seen.released.end(), command.released_tickets().begin(),
                           command.released_tickets().end());
      seen.withdrawn.insert(seen.withdrawn.end(), command.withdrawn_handles().begin(),
                            command.withdrawn_handles().end());
      for (const v1::AdmitRequest& request : command.requests()) {
        seen.requests.push_back(request);
        if (!seen.hold) Grant(request, &seen, event.add_outcomes());
      }
    });
    if (!event.outcomes().empty()) {
      EXPECT_EQ(Write(std::move(event)), rpc::WriteResult::kAccepted);
    }
    RequestRead();
  }
  static void Grant(const v1::AdmitRequest& request, Seen* seen, v1::AdmitOutcome* outcome) {
    outcome->set_handle(request.handle());
    v1::Ticket* ticket = outcome->mutable_ticket();
    ticket->set_ticket_id(++seen->last_ticket);
    *ticket->mutable_worker() = request.candidates(0);
    ticket->set_sequence_id(request.sequence_id());
    ticket->set_attempt(request.attempt() + 1);
    ticket->set_epoch(kFakeEpoch);
    ticket->mutable_plan()->set_split_kv_size(256);
    ticket->mutable_plan()->set_length(request.length());
    seen->granted.push_back(ticket->ticket_id());
  }

  FakeScheduler* const owner_;
};

class FakeScheduler::WatchHandler final
    : public rpc::ServerStreamHandler<v1::WatchWorkersRequest, v1::WorkerSnapshot> {
 public:
  WatchHandler(FakeScheduler* owner, grpc::CallbackServerContext* context,
               const v1::WatchWorkersRequest* request)
      : ServerStreamHandler(context, request), owner_(owner) {}

 private:
  void Start() override {
    v1::WorkerSnapshot snapshot;
    for (const v1::WorkerState& state : owner_->workers_) *snapshot.add_workers() = state;
    EXPECT_EQ(Write(std::move(snapshot)), rpc::WriteResult::kAccepted);
  }
  FakeScheduler* const owner_;
};

class FakeScheduler::Service final : public v1::SchedulerService::CallbackService {
 public:
  explicit Service(FakeScheduler* owner) : owner_(owner) {}
  grpc::ServerBidiReactor<v1::AdmitCommand, v1::AdmitEvent>* Admit(
      grpc::CallbackServerContext* context) override {
    return rpc::StartHandler<AdmitHandler>(owner_, context);
  }
  grpc::ServerWriteReactor<v1::WorkerSnapshot>* WatchWorkers(
      grpc::CallbackServerContext* context, const v1::WatchWorkersRequest* request) override {
    return rpc::StartHandler<WatchHandler>(owner_, context, request);
  }

 private:
  FakeScheduler* const owner_;
};

FakeScheduler::FakeScheduler(std::vector<v1::WorkerState> workers, int port)
    : workers_(std::move(workers)), service_(std::make_unique<Service>(this)) {
  server_ = StartServer(port, service_.get());
}

FakeScheduler::~FakeScheduler() { server_->Shutdown(); }

void FakeScheduler::LoseWorker(const v1::WorkerIdentity& worker) {
  streams_.With([&](auto& streams) {
    for (const auto& weak : streams) {
      v1::AdmitEvent event;
      *event.add_lost_workers() = worker;
      if (const auto stream = weak.lock()) (void)stream->Write(std::move(event));
    }
  });
}

class FakeGateway::Stream final : public rpc::ClientBidiStream<v1::RouteCommand, v1::RouteFrame> {
 public:
  explicit Stream(FakeGateway* owner) : ClientBidiStream(rpc::CallScope{}), owner_(owner) {}

 private:
  void OnMessage(v1::RouteFrame& frame) override {
    owner_->received.With([&](Received& received) {
      for (const v1::RouteEntry& entry : frame.entries()) {
        EXPECT_TRUE(received.entry_epochs.emplace(entry.handle(), entry.epoch()).second);
      }
      for (const v1::SequenceDelta& delta : frame.deltas()) {
        std::vector<uint32_t>& ids = received.ids[delta.handle()];
        const size_t count = delta.token_ids().size() / sizeof(uint32_t);
        if (count > 0 && delta.token_begin() != static_cast<int64_t>(ids.size())) {
          received.wrong_position = true;
        }
        ids.resize(ids.size() + count);
        if (count > 0) {
          std::memcpy(ids.data() + ids.size() - count, delta.token_ids().data(),
                      delta.token_ids().size());
        }
        if (delta.has_end()) {
          EXPECT_TRUE(received.ends.emplace(delta.handle(), delta.end()).second)
              << "handle " << delta.handle() << " ended twice";
        }
      }
    });
    RequestRead();
  }
  void OnClosed(const absl::Status& status) override {
    owner_->received.With([&](Received& received) {
      received.closed = true;
      received.status = status;
    });
  }

  FakeGateway* const owner_;
};

FakeGateway::FakeGateway(int port) {
  const auto stub = v1::RouterService::NewStub(rpc::MakeChannel(absl::StrCat("127.0.0.1:", port)));
  stream_ = rpc::StartStream<Stream>(
      [&](grpc::ClientContext* context, auto* reactor) { stub->async()->Route(context, reactor); },
      this);
  stream_->RequestRead();
}

FakeGateway::~FakeGateway() { Break(); }

void FakeGateway::Break() {
  stream_->Cancel();
  EXPECT_TRUE(received.WaitFor([](const Received& r) { return r.closed; }));
}

void FakeGateway::Send(v1::RouteCommand command) {
  EXPECT_EQ(stream_->Write(std::move(command)), rpc::WriteResult::kAccepted);
}

void FakeGateway::Open(uint64_t handle, int64_t max_new_tokens) {
  v1::RouteCommand command;
  AddOpen(handle, max_new_tokens, &command);
  Send(std::move(command));
}

void FakeGateway::AddOpen(uint64_t handle, int64_t max_new_tokens, v1::RouteCommand* command) {
  v1::RouteOpen* open = command->add_open();
  open->set_handle(handle);
  open->set_deadline_seconds(60);
  open->set_credit_tokens(1 << 20);
  open->set_retry_budget(8);
  v1::SequenceSpec* spec = open->mutable_sequence();
  spec->set_sequence_id(absl::StrCat("request/", handle));
  spec->set_request_id("request");
  spec->add_prompt_ids(static_cast<uint32_t>(handle));
  spec->mutable_parameters()->mutable_stop()->set_max_new_tokens(max_new_tokens);
}

std::vector<uint32_t> FakeGateway::WaitForEnd(uint64_t handle) {
  EXPECT_TRUE(received.WaitFor([&](const Received& r) { return r.ends.contains(handle); }));
  return received.With([&](Received& r) {
    EXPECT_FALSE(r.wrong_position);
    return r.ids[handle];
  });
}

}  // namespace lockstep::router
