#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/gateway/gateway_options.h"

namespace lockstep::gateway {

// One gateway. Ready once a worker has told it the model, and while its tokenizer is the model's;
// peers that are away show as UNAVAILABLE answers and metrics.
class GatewayServer {
 public:
  static absl::StatusOr<std::unique_ptr<GatewayServer>> Start(GatewayOptions options);
  ~GatewayServer();

  int port() const;
  // Not ready, no new requests; what runs may finish for `drain_finish` (at most until `deadline`),
  // then ends as resumable partials.
  void Drain(absl::Time deadline);

 private:
  class Impl;
  explicit GatewayServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::gateway
