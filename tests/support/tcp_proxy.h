#pragma once

#include <memory>

#include "absl/status/statusor.h"

namespace lockstep::testing {

// A wire between two processes that a test can spoil. Listens on a free port of the loopback and
// passes bytes both ways to `target_port` there; one thread of its own does all of it. Thread-safe.
class TcpProxy {
 public:
  // `target_port` need not be open yet: a connection that cannot be passed on is closed.
  static absl::StatusOr<std::unique_ptr<TcpProxy>> Start(int target_port);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  int port() const;

  // From now on nothing passes in either direction, and nobody is told: new connections are taken
  // by the kernel and stay silent. False lets everything through that waited, as when packets are
  // sent again.
  void SetBlackHole(bool on);
  // From now on one byte a second comes back over each connection, as for a reader who takes no
  // more; what is sent to the target passes. False lets the rest through.
  void SetTrickle(bool on);
  // Resets every open connection; new ones are welcome.
  void Cut();

 private:
  class Impl;
  explicit TcpProxy(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::testing
