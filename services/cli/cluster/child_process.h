#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::cli {

// One child that runs a program of its own. It is killed when the thread that spawned it ends, so
// that no process outlives a parent that crashed. Not thread-safe.
class ChildProcess {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;  // Without the program's name.
    std::string log_path;                // Receives both outputs, appended.
  };
  // Errors of exec show as exit code 127.
  static absl::StatusOr<ChildProcess> Spawn(const Options& options);

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // How it ended ("exit code 1", "signal 9"), once it has; never waits.
  std::optional<std::string> Ended();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_;
  std::optional<std::string> ended_;
};

}  // namespace lockstep::cli
