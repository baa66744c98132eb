#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/cli/cluster/child_process.h"
#include "services/cli/cluster/cluster_layout.h"
#include "services/client/metrics_page.h"
#include "services/client/rollout_client.h"

namespace lockstep::testing {

// The real processes of one cluster without a supervisor: what a test kills stays dead until the
// test starts it again, and every configuration can be changed first. The thread that starts the
// members has to outlive them; Signal() may be called from any thread, the rest from that one.
class MemberCluster {
 public:
  struct Options {
    cli::ClusterOptions cluster;
    double lease_seconds = 1;
    // Changes a worker's configuration before anything starts.
    std::function<void(const cli::Member&, config::v1::WorkerConfig*)> edit_worker = nullptr;
    // Of members that run another program than lockstep, with the same arguments.
    std::map<std::string, std::string> programs;
  };
  // Waits until the gateway knows every worker. The run directory is new and goes with the object.
  static absl::StatusOr<std::unique_ptr<MemberCluster>> Start(Options options);
  ~MemberCluster();

  client::RolloutClient& client() { return *client_; }
  const cli::Member& member(const std::string& name) const;
  const std::string& run_dir() const { return layout_.run_dir; }
  absl::Duration lease() const { return lease_; }

  // SIGKILL; returns when the process is gone.
  void Kill(const std::string& name);
  absl::Status StartMember(const std::string& name);
  // What a worker is configured as, and what it shall be at its next start.
  config::v1::WorkerConfig WorkerConfigOf(const std::string& name) const;
  void SetWorkerConfig(const std::string& name, const config::v1::WorkerConfig& config);
  void Signal(const std::string& name, int signal) const;
  // How it ended by itself, once it has.
  std::optional<std::string> Ended(const std::string& name) { return processes_.at(name).Ended(); }
  pid_t PidOf(const std::string& name) const { return processes_.at(name).pid(); }
  // What it has written so far, over all of its lives.
  std::string Log(const std::string& name) const;
  // Sum over the labels of a metric; -1 when nobody answers.
  double Metric(const std::string& name, const std::string& metric) const;
  // Its life as the gateway knows it, 0 when it is not listed.
  uint64_t IncarnationOf(const std::string& worker);
  // Waits until the gateway lists a life of the worker other than `old`.
  bool WaitForNewLife(const std::string& worker, uint64_t old);

 private:
  MemberCluster(cli::ClusterLayout layout, const Options& options);
  std::string ConfigPath(const std::string& name) const;
  std::string LogPath(const std::string& name) const;

  cli::ClusterLayout layout_;
  const absl::Duration lease_;
  const std::map<std::string, std::string> programs_;
  std::map<std::string, cli::ChildProcess> processes_;
  std::unique_ptr<client::RolloutClient> client_;
};

}  // namespace lockstep::testing
