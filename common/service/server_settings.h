#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/log/logger.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/server.h"
#include "lockstep/config/v1/config.pb.h"

namespace lockstep::service {

// The part of every role's configuration that says where it listens and how it logs, with defaults
// filled in. They are written in config.proto and set here.
struct ServerSettings {
  rpc::ServerOptions rpc;
  std::string metrics_listen;     // Empty: no metrics endpoint.
  std::string metrics_advertise;  // host:port; empty: as ServiceBase::metrics_address() says.
  bool metrics_tls = false;
  std::string metrics_tokens_dir;  // Empty: metrics need no token.
  log::Level level_min = log::Level::kInfo;
  std::string cluster_id;
  absl::Duration drain_finish;
  absl::Duration reload;  // Between looks at files that may be replaced.
};

// A channel to another role of the cluster, whose certificate must name that role.
rpc::ChannelOptions ChannelOptionsTo(const std::string& role, const ServerSettings& settings);

// INVALID_ARGUMENT names the field, its value and its range; or a file of `tls` that is not what it
// should be.
absl::StatusOr<ServerSettings> ReadServerSettings(const config::v1::ServerConfig& config);

// Reads one numeric field: 0 takes the default, a value outside [low, high] is INVALID_ARGUMENT.
absl::StatusOr<int64_t> IntegerOr(const char* field, int64_t value, int64_t fallback, int64_t low,
                                  int64_t high);
absl::StatusOr<absl::Duration> SecondsOr(const char* field, double value, double fallback,
                                         double low, double high);
// Whether a field `mode` says "normal"; "deterministic" and nothing say that it does not.
absl::StatusOr<bool> IsNormalMode(const std::string& mode);
// INVALID_ARGUMENT when a required text field is empty.
absl::Status CheckRequired(const char* field, const std::string& value);
// The same for a field that names a peer; see base::CheckTarget.
absl::Status CheckRequiredTarget(const char* field, const std::string& value);

}  // namespace lockstep::service
