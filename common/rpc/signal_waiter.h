#pragma once

#include <signal.h>

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lockstep::rpc {

// Turns SIGTERM and SIGINT into something a thread can wait for. The handler only writes the
// signal's number to a pipe; everything else happens in the waiting thread. Children that are
// executed get the default handlers back. At most one in a process at a time.
class SignalWaiter {
  struct Private {};

 public:
  // Installs the handlers; kFailedPrecondition when another waiter exists.
  static absl::StatusOr<std::unique_ptr<SignalWaiter>> Create();
  // For Create().
  SignalWaiter(Private, int read_fd, int write_fd) : read_fd_(read_fd), write_fd_(write_fd) {}
  // Puts the former handlers back.
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;

  // The next signal that came, oldest first; 0 after Interrupt(); nullopt when `timeout` passed. A
  // second signal after the first usually means "now".
  std::optional<int> Wait(absl::Duration timeout = absl::InfiniteDuration());
  // Makes one Wait() return 0. From any thread.
  void Interrupt();

 private:
  const int read_fd_;
  const int write_fd_;
  bool installed_ = false;
  struct sigaction old_terminate_ = {};
  struct sigaction old_interrupt_ = {};
};

}  // namespace lockstep::rpc
