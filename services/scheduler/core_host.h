#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "lockstep/v1/scheduler.pb.h"
#include "services/scheduler/scheduler_core.h"
#include "services/scheduler/scheduler_metrics.h"
#include "services/scheduler/worker_control.h"

namespace lockstep::scheduler {

// The far end of one router's Admit stream. Both are called under the host's mutex, must not block
// and must not call the host.
class AdmitSink {
 public:
  virtual ~AdmitSink() = default;
  virtual void Send(v1::AdmitEvent event) = 0;
  virtual void Close(absl::Status status) = 0;
};

// The far end of one WatchWorkers stream, under the same rules. A slow one may skip snapshots.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  virtual void Send(std::shared_ptr<const v1::WorkerSnapshot> snapshot) = 0;
  virtual void Close(absl::Status status) = 0;
};

// The one owner of the core: a mutex around it, and the execution of what it decides. Decisions of
// one event are carried out before the next event is looked at, so every router sees them in
// order. Thread-safe.
class CoreHost : public std::enable_shared_from_this<CoreHost> {
 public:
  struct Deps {
    std::string cluster_id;
    std::unique_ptr<SchedulerCore> core;
    std::unique_ptr<WorkerControl> control;
    absl::Duration control_timeout;
    SchedulerMetrics* metrics = nullptr;
    const base::Clock* clock = nullptr;
    log::Logger logger;
  };
  using OperationDone = std::function<void(const OperationResult&)>;

  explicit CoreHost(Deps deps);

  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request,
                                                absl::Duration lease);
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request);
  absl::StatusOr<v1::LeaveResponse> Leave(const v1::LeaveRequest& request);
  absl::StatusOr<v1::GetStateResponse> GetState();
  absl::StatusOr<v1::GetClusterInfoResponse> GetClusterInfo(
      const v1::GetClusterInfoRequest& request);

  // The stream's name, or UNAVAILABLE once closed. The sink lives until CloseRouter() returns.
  absl::StatusOr<RouterStream> OpenRouter(const std::string& router_id, AdmitSink* sink);
  void OnAdmitCommand(RouterStream stream, const v1::AdmitCommand& command);
  void CloseRouter(RouterStream stream);

  // Sends the current snapshot at once. The sink lives until CloseWatch() returns.
  absl::Status OpenWatch(WatchSink* sink);
  void CloseWatch(WatchSink* sink);

  // Runs `begin` on the core and `done` when the operation it began has finished; returns its error
  // when nothing was begun. `done` runs under the host's mutex, possibly before this returns.
  absl::Status Operate(const std::function<absl::StatusOr<OperationId>(SchedulerCore&)>& begin,
                       OperationDone done);

  // Lets time have its effects and publishes a snapshot when it is due.
  void Tick();
  // Ends all streams; new ones are refused from now on.
  void CloseAll(const absl::Status& status);
  // Answers of workers that come later are dropped, since what the host was given is going away.
  void Shutdown();

 private:
  void CarryOut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendEvents(const Decisions& decisions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeCall(const ControlCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogDecisions(const Decisions& decisions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateGauges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const v1::WorkerSnapshot> Snapshot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckCluster(const std::string& cluster_id) const;

  const std::string cluster_id_;
  const absl::Duration control_timeout_;
  SchedulerMetrics* const metrics_;
  const base::Clock* const clock_;
  const log::Logger logger_;

  base::Mutex mutex_;
  const std::unique_ptr<SchedulerCore> core_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<WorkerControl> control_ ABSL_PT_GUARDED_BY(mutex_);
  MetricsMirror mirror_ ABSL_GUARDED_BY(mutex_);
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
  uint64_t stream_count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<RouterStream, AdmitSink*> routers_ ABSL_GUARDED_BY(mutex_);
  std::vector<WatchSink*> watches_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<OperationId, OperationDone> operations_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<WorkerName, std::string> addresses_ ABSL_GUARDED_BY(mutex_);
  // Of the worker that registered last; all have the same contract.
  std::optional<v1::RegisterRequest> example_ ABSL_GUARDED_BY(mutex_);
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const v1::WorkerSnapshot> published_ ABSL_GUARDED_BY(mutex_);
  uint64_t sent_revision_ ABSL_GUARDED_BY(mutex_) = 0;  // To all watches.
  absl::Time published_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool publish_now_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::scheduler
