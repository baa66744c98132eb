#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/scheduler/scheduler_options.h"

namespace lockstep::scheduler {

// The scheduler's process: state file, core, RPC server, and one thread, "sched-ticker", that lets
// time have its effects. Example:
//   LOCKSTEP_ASSIGN_OR_RETURN(SchedulerOptions options, ReadSchedulerOptions(config));
//   LOCKSTEP_ASSIGN_OR_RETURN(auto server, SchedulerServer::Start(std::move(options)));
class SchedulerServer {
 public:
  // DATA_LOSS when the state file is corrupted; FAILED_PRECONDITION when it, or an address, is in
  // use.
  static absl::StatusOr<std::unique_ptr<SchedulerServer>> Start(SchedulerOptions options);
  // Shuts down without grace.
  ~SchedulerServer();

  int port() const;
  // host:port where metrics are served; empty without an endpoint.
  std::string metrics_address() const;
  // Ends routers' and watchers' streams, then the server; calls may end until `deadline`. Running
  // sequences go on without a scheduler.
  void Drain(absl::Time deadline);

 private:
  class Impl;
  explicit SchedulerServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::scheduler
