#include "common/rpc/signal_waiter.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "absl/time/clock.h"

namespace lockstep::rpc {
namespace {

// A signal handler can reach nothing but globals: the write end of the waiter's pipe, or -1.
std::atomic<int> signal_pipe{-1};

void WriteSignal(int signal_number) {
  const int saved_errno = errno;
  const auto byte = static_cast<uint8_t>(signal_number);
  // A full pipe holds more signals than anyone waits for, so a failed write loses nothing.
  [[maybe_unused]] const ssize_t written = write(signal_pipe.load(), &byte, 1);
  errno = saved_errno;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalWaiter>> SignalWaiter::Create() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  auto waiter = std::make_unique<SignalWaiter>(Private{}, ends[0], ends[1]);
  int expected = -1;
  if (!signal_pipe.compare_exchange_strong(expected, ends[1])) {
    return absl::FailedPreconditionError("another SignalWaiter exists in this process");
  }
  struct sigaction action = {};
  action.sa_handler = WriteSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, &waiter->old_terminate_);
  sigaction(SIGINT, &action, &waiter->old_interrupt_);
  waiter->installed_ = true;
  return waiter;
}

SignalWaiter::~SignalWaiter() {
  if (installed_) {
    sigaction(SIGTERM, &old_terminate_, nullptr);
    sigaction(SIGINT, &old_interrupt_, nullptr);
    signal_pipe.store(-1);
  }
  close(read_fd_);
  close(write_fd_);
}

std::optional<int> SignalWaiter::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    uint8_t signal_number = 0;
    if (read(read_fd_, &signal_number, 1) == 1) return signal_number;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return std::nullopt;
    pollfd waited = {.fd = read_fd_, .events = POLLIN, .revents = 0};
    // An hour at most, so that the milliseconds fit; the loop waits again.
    poll(&waited, 1,
         static_cast<int>(absl::ToInt64Milliseconds(
             absl::Ceil(std::min(left, absl::Hours(1)), absl::Milliseconds(1)))));
  }
}

void SignalWaiter::Interrupt() {
  const uint8_t none = 0;
  [[maybe_unused]] const ssize_t written = write(write_fd_, &none, 1);
}

}  // namespace lockstep::rpc
