#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/signal_waiter.h"
#include "services/cli/cluster/child_process.h"
#include "services/cli/cluster/cluster_layout.h"

namespace lockstep::cli {

// Starts the processes of a local cluster, starts again those that die, and ends them in order.
// Owns the run directory while it lives. One thread uses it, the one that made it.
class Supervisor {
  struct Private {};

 public:
  // Makes the run directory and writes the configurations. FAILED_PRECONDITION when a port or the
  // run directory belongs to a cluster that runs.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Create(ClusterLayout layout,
                                                            rpc::SignalWaiter* signals);
  // For Create().
  Supervisor(Private, ClusterLayout layout, rpc::SignalWaiter* signals, int lock_fd);
  // Kills what still runs.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts all and returns when the gateway can serve. UNAVAILABLE shows the end of the log of the
  // process that died or was not ready by `deadline`; ABORTED: a signal came.
  absl::Status StartAll(absl::Time deadline);
  // Keeps all running until a signal comes; a child that dies is started again, later each time.
  void Supervise();
  // SIGTERM to the gateway, the router, the workers, the scheduler, each when those before have
  // ended or had `patience`, then SIGKILL. A second signal kills at once,
  // unless it comes within a second.
  void StopAll(absl::Duration patience);

 private:
  struct Child {
    std::unique_ptr<ChildProcess> process;
    absl::Time started;
    absl::Duration pause = absl::ZeroDuration();  // Before the next start.
    absl::Time restart_at = absl::InfiniteFuture();
  };

  absl::Status Start(const Member& member);
  void Restart(const Member& member);
  absl::Status WaitReady(absl::Time deadline);
  std::string LogPath(const Member& member) const;
  std::string LogTail(const Member& member) const;
  // Ends all members for which `chosen` holds.
  void Stop(const std::function<bool(const Member&)>& chosen, absl::Duration patience);

  const ClusterLayout layout_;
  rpc::SignalWaiter* const signals_;
  const int lock_fd_;
  std::map<std::string, Child> children_;  // By member name.
  bool hurry_ = false;                     // A second signal came.
  absl::Time hurry_from_;                  // One that comes before is the first one, repeated.
};

}  // namespace lockstep::cli
