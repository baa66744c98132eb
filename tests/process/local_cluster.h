#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/cli/cluster/child_process.h"
#include "services/client/rollout_client.h"

namespace lockstep::testing {

// What a run of the binary left behind.
struct Outcome {
  std::string ended;   // "exit code 0"
  std::string output;  // Both streams.
};

// Runs `lockstep` with these words to its end.
Outcome RunLockstep(const std::vector<std::string>& words,
                    absl::Duration timeout = absl::Minutes(3));
// The same with a standard output that is full.
Outcome RunLockstepUnheard(const std::vector<std::string>& words);
// The same for any program.
Outcome RunProgram(const std::string& program, const std::vector<std::string>& words,
                   absl::Duration timeout = absl::Minutes(3));

// A new directory for one run; whoever asks removes it.
std::string MakeRunDirectory();

// A cluster of real processes, started by `lockstep up` on free ports, in a directory of its own.
// One thread uses it.
class LocalCluster {
 public:
  // Waits until it serves; the status shows the output of `up` when it does not.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(
      const std::vector<std::string>& flags = {});
  // Kills it and removes its files.
  ~LocalCluster();

  const std::string& target() const { return target_; }
  const std::string& run_dir() const { return run_dir_; }
  client::RolloutClient& client() { return *client_; }
  // What `up` has printed.
  std::string Output() const;

  // Process of "worker-0" and the like, as its pid file says; -1 without one.
  pid_t PidOf(const std::string& member) const;
  void Signal(const std::string& member, int signal) const;
  // Signals `up` itself.
  void SignalUp(int signal) const { up_->Signal(signal); }
  // How `up` ended; an error when it did not within the time.
  absl::StatusOr<std::string> WaitForEnd(absl::Duration timeout);
  // A worker's incarnation as the gateway sees it, 0 when the worker is not there.
  uint64_t IncarnationOf(const std::string& worker);

 private:
  explicit LocalCluster(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  const std::string run_dir_;
  std::unique_ptr<cli::ChildProcess> up_;
  std::string target_;
  std::unique_ptr<client::RolloutClient> client_;
};

}  // namespace lockstep::testing
