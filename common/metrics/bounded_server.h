#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "httplib.h"

namespace lockstep::metrics {

// cpp-httplib's server with one bound for a whole connection: handshake, request and answer. The
// library bounds each read, so that who sends a byte now and then would hold a thread, and the
// server's end, for ever. One request a connection.
class BoundedServer final : public httplib::Server {
 public:
  // HTTPS where there is a `context`.
  BoundedServer(SSL_CTX* context, std::chrono::milliseconds connection_max)
      : context_(context, &SSL_CTX_free), connection_max_(connection_max) {}

  // From now on nothing more is read, so that stop() waits for answers alone. Thread-safe.
  void StopReading();

 private:
  bool process_and_close_socket(socket_t socket) override;

  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  const std::chrono::milliseconds connection_max_;
  base::Mutex mutex_;
  bool reads_ ABSL_GUARDED_BY(mutex_) = true;
  std::set<socket_t> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::metrics
