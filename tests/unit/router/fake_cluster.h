#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/handler.h"
#include "common/rpc/server.h"
#include "lockstep/v1/router.grpc.pb.h"
#include "lockstep/v1/scheduler.grpc.pb.h"
#include "lockstep/v1/worker.grpc.pb.h"

namespace lockstep::router {

// State that gRPC's threads change and a test waits for.
template <typename T>
class Watched {
 public:
  template <typename F>
  auto With(F&& f) {
    base::MutexLock lock(&mutex_);
    changed_.NotifyAll();
    return f(value_);
  }
  // False when the condition did not come true in time.
  bool WaitFor(const std::function<bool(const T&)>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    base::MutexLock lock(&mutex_);
    while (!condition(value_)) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitFor(&mutex_, left);
    }
    return true;
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  T value_;
};

// A worker that counts: the token at output position p is 1000 + p. It generates up to `pause_at`
// output positions of each sequence and then says nothing more.
class FakeWorker {
 public:
  explicit FakeWorker(std::string id, int64_t pause_at = 1 << 20, int port = 0);
  ~FakeWorker() { Kill(); }

  void Kill() { server_->Shutdown(); }
  v1::WorkerState state() const;

  struct Seen {
    std::vector<v1::WorkerStart> starts;
    std::vector<uint64_t> cancels;
    int64_t credit = 0;
  };
  Watched<Seen> seen;

 private:
  class RunHandler;
  class Service;

  const std::string id_;
  const int64_t pause_at_;
  std::unique_ptr<v1::WorkerService::CallbackService> service_;
  std::unique_ptr<rpc::Server> server_;
};

// Of every ticket that a FakeScheduler grants.
constexpr uint64_t kFakeEpoch = 3;

// A scheduler that grants everything on the first candidate, while it is told to.
class FakeScheduler {
 public:
  explicit FakeScheduler(std::vector<v1::WorkerState> workers, int port = 0);
  ~FakeScheduler();

  int port() const { return server_->port(); }
  void LoseWorker(const v1::WorkerIdentity& worker);
  void HoldGrants() {
    seen.With([](Seen& s) { s.hold = true; });
  }

  struct Seen {
    bool hold = false;
    uint64_t last_ticket = 0;
    std::string router_id;
    std::vector<v1::AdmitRequest> requests;
    std::vector<uint64_t> granted;
    std::vector<uint64_t> released;
    std::vector<uint64_t> withdrawn;
  };
  Watched<Seen> seen;

 private:
  class AdmitHandler;
  class WatchHandler;
  class Service;

  const std::vector<v1::WorkerState> workers_;
  Watched<std::vector<std::weak_ptr<AdmitHandler>>> streams_;
  std::unique_ptr<v1::SchedulerService::CallbackService> service_;
  std::unique_ptr<rpc::Server> server_;
};

// A gateway: opens sequences and keeps what comes back.
class FakeGateway {
 public:
  explicit FakeGateway(int port);
  ~FakeGateway();

  void Open(uint64_t handle, int64_t max_new_tokens);
  static void AddOpen(uint64_t handle, int64_t max_new_tokens, v1::RouteCommand* command);
  void Send(v1::RouteCommand command);
  void Break();
  // Ids of the handle once it has ended; checks that no position comes twice or is missing.
  std::vector<uint32_t> WaitForEnd(uint64_t handle);

  struct Received {
    std::map<uint64_t, std::vector<uint32_t>> ids;
    std::map<uint64_t, v1::SequenceEnd> ends;
    std::map<uint64_t, uint64_t> entry_epochs;
    bool wrong_position = false;
    bool closed = false;
    absl::Status status;
  };
  Watched<Received> received;

 private:
  class Stream;
  std::shared_ptr<Stream> stream_;
};

}  // namespace lockstep::router
