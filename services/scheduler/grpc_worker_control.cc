#include "services/scheduler/grpc_worker_control.h"

#include <utility>

#include "common/rpc/call_unary.h"
#include "common/rpc/deadline.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "services/scheduler/scheduler_wire.h"

namespace lockstep::scheduler {

// The calls to one address, one after the other.
class GrpcWorkerControl::Line : public std::enable_shared_from_this<Line> {
 public:
  explicit Line(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::WorkerService::NewStub(channel)) {}

  void Add(v1::ControlRequest request, absl::Time deadline, Done done) {
    base::MutexLock lock(&mutex_);
    waiting_.push_back({std::move(request), deadline, std::move(done)});
    StartNextLocked();
  }
  void Cancel() {
    base::MutexLock lock(&mutex_);
    closed_ = true;
    in_flight_.Cancel();
  }

 private:
  struct Waiting {
    v1::ControlRequest request;
    absl::Time deadline;
    Done done;
  };

  void StartNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (busy_ || waiting_.empty()) return;
    busy_ = true;
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    using Worker = v1::WorkerService::StubInterface::async_interface;
    // A call whose time ran out while it waited fails with DEADLINE_EXCEEDED by itself.
    in_flight_ = rpc::CallUnary<Worker, Worker, v1::ControlRequest, v1::ControlResponse>(
        stub_->async(), &Worker::Control, std::move(next.request), {.deadline = next.deadline},
        [self = shared_from_this(),
         done = std::move(next.done)](absl::StatusOr<v1::ControlResponse> response) {
          if (response.ok()) {
            done(DecodeControlReply(*response));
          } else {
            done(response.status());
          }
          self->OnDone();
        });
    if (closed_) in_flight_.Cancel();
  }
  void OnDone() {
    base::MutexLock lock(&mutex_);
    busy_ = false;
    StartNextLocked();
  }

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  base::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  rpc::CallHandle in_flight_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

GrpcWorkerControl::GrpcWorkerControl(std::string cluster_id, rpc::ChannelOptions channel)
    : cluster_id_(std::move(cluster_id)), channels_({.channel = channel}) {}

GrpcWorkerControl::~GrpcWorkerControl() {
  base::MutexLock lock(&mutex_);
  for (const auto& [address, line] : lines_) line->Cancel();
}

std::shared_ptr<GrpcWorkerControl::Line> GrpcWorkerControl::LineOf(const std::string& address) {
  base::MutexLock lock(&mutex_);
  std::shared_ptr<Line>& line = lines_[address];
  if (line == nullptr) line = std::make_shared<Line>(channels_.Get(address));
  return line;
}

void GrpcWorkerControl::Call(const ControlCall& call, absl::Duration timeout, Done done) {
  LineOf(call.address)
      ->Add(EncodeControl(cluster_id_, call), absl::Now() + timeout, std::move(done));
}

void GrpcWorkerControl::Forget(const std::string& address) {
  channels_.Forget(address);
  base::MutexLock lock(&mutex_);
  lines_.erase(address);
}

}  // namespace lockstep::scheduler
