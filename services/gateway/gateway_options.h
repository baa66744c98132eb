#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/service/server_settings.h"
#include "lockstep/config/v1/config.pb.h"

namespace lockstep::gateway {

// GatewayConfig with defaults filled in and every value checked.
struct GatewayOptions {
  service::ServerSettings server;
  std::vector<std::string> routers;
  std::string scheduler;
  std::string tokenizer_dir;  // Empty: ids only.
  std::string tokens_dir;     // Empty: clients are known by certificates alone.
  absl::Duration connection_age;
  absl::Duration default_deadline;
  int64_t sequences_max = 0;
  int64_t prompt_bytes_max = 0;
  int64_t stream_slots = 0;
  int64_t stream_slots_total = 0;
  absl::Duration stream_idle_timeout;
  absl::Duration orphan_grace;
  absl::Duration result_ttl;
  int64_t result_bytes_max = 0;
  int64_t retry_budget = 0;
};

// INVALID_ARGUMENT names the field, its value and its range.
absl::StatusOr<GatewayOptions> ReadGatewayOptions(const config::v1::GatewayConfig& config);

}  // namespace lockstep::gateway
