#include "common/service/server_settings.h"

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"

namespace lockstep::service {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

absl::StatusOr<log::Level> ReadLevel(const std::string& name) {
  if (name == "debug") return log::Level::kDebug;
  if (name.empty() || name == "info") return log::Level::kInfo;
  if (name == "warning") return log::Level::kWarning;
  if (name == "error") return log::Level::kError;
  return absl::InvalidArgumentError(
      absl::StrCat("server.log_level: \"", name, "\" is none of debug, info, warning, error"));
}

// Unlike a target of gRPC's it has a host and a port, which whoever scrapes can use.
absl::Status CheckMetricsAdvertise(const config::v1::ServerConfig& config) {
  const std::string& address = config.metrics_advertise();
  if (address.empty()) return absl::OkStatus();
  if (config.metrics_listen().empty()) {
    return absl::InvalidArgumentError("server.metrics_advertise: needs server.metrics_listen");
  }
  const absl::StatusOr<base::HostPort> parsed = base::ParseHostPort(address);
  if (parsed.ok() && parsed->port > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("server.metrics_advertise: \"", address,
                   "\" is not host:port, such as 10.0.0.1:7107, with a port in [1, 65535]"));
}

// Null where plaintext was chosen.
absl::StatusOr<std::shared_ptr<const rpc::Security>> ReadSecurity(
    const config::v1::ServerConfig& config, absl::Duration reload) {
  if (config.plaintext() == config.has_tls()) {
    return absl::InvalidArgumentError("server: either tls or plaintext has to be chosen");
  }
  if (config.plaintext()) return nullptr;
  const config::v1::TlsConfig& tls = config.tls();
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired("server.tls.certificate_file", tls.certificate_file()));
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired("server.tls.key_file", tls.key_file()));
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired("server.tls.authorities_file", tls.authorities_file()));
  return rpc::Security::Create({.certificate = tls.certificate_file(),
                                .key = tls.key_file(),
                                .authorities = tls.authorities_file(),
                                .reload = reload});
}

}  // namespace

rpc::ChannelOptions ChannelOptionsTo(const std::string& role, const ServerSettings& settings) {
  rpc::ChannelOptions options;
  options.message_bytes_max = settings.rpc.message_bytes_max;
  options.security = settings.rpc.security;
  if (options.security != nullptr) options.peer_name = role;
  return options;
}

absl::StatusOr<int64_t> IntegerOr(const char* field, int64_t value, int64_t fallback, int64_t low,
                                  int64_t high) {
  if (value == 0) return fallback;
  if (value >= low && value <= high) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " is outside [", low, ", ", high, "]"));
}

absl::StatusOr<absl::Duration> SecondsOr(const char* field, double value, double fallback,
                                         double low, double high) {
  if (value == 0) return absl::Seconds(fallback);
  if (value >= low && value <= high) return absl::Seconds(value);
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", value, " is outside [", low, ", ", high, "] seconds"));
}

absl::StatusOr<bool> IsNormalMode(const std::string& mode) {
  if (mode.empty() || mode == "deterministic") return false;
  if (mode == "normal") return true;
  return absl::InvalidArgumentError(
      absl::StrCat("mode: \"", mode, "\" is neither deterministic nor normal"));
}

absl::Status CheckRequired(const char* field, const std::string& value) {
  if (!value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": required, but not set"));
}

absl::Status CheckRequiredTarget(const char* field, const std::string& value) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired(field, value));
  return base::CheckTarget(field, value);
}

absl::StatusOr<ServerSettings> ReadServerSettings(const config::v1::ServerConfig& config) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired("server.listen", config.listen()));
  LOCKSTEP_RETURN_IF_ERROR(base::CheckListenAddress("server.listen", config.listen()));
  if (!config.metrics_listen().empty()) {
    LOCKSTEP_RETURN_IF_ERROR(
        base::CheckListenAddress("server.metrics_listen", config.metrics_listen()));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckMetricsAdvertise(config));
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired("server.cluster_id", config.cluster_id()));
  ServerSettings settings;
  settings.rpc.address = config.listen();
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes,
                            IntegerOr("server.message_bytes_max", config.message_bytes_max(),
                                      64 * kMiB, kMiB, 1024 * kMiB));
  settings.rpc.message_bytes_max = static_cast<size_t>(bytes);
  settings.metrics_listen = config.metrics_listen();
  settings.metrics_advertise = config.metrics_advertise();
  LOCKSTEP_ASSIGN_OR_RETURN(settings.level_min, ReadLevel(config.log_level()));
  settings.cluster_id = config.cluster_id();
  LOCKSTEP_ASSIGN_OR_RETURN(
      settings.drain_finish,
      SecondsOr("server.drain_finish_seconds", config.drain_finish_seconds(), 30, 0.001, 3600));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.reload, SecondsOr("server.tls.reload_seconds",
                                                       config.tls().reload_seconds(), 10, 1, 3600));
  LOCKSTEP_ASSIGN_OR_RETURN(settings.rpc.security, ReadSecurity(config, settings.reload));
  settings.metrics_tls = config.has_tls() && !config.metrics_plaintext();
  settings.metrics_tokens_dir = config.metrics_tokens_dir();
  if (config.metrics_plaintext() && !config.has_tls()) {
    return absl::InvalidArgumentError("server.metrics_plaintext: is so already without server.tls");
  }
  if (!settings.metrics_tokens_dir.empty() && !settings.metrics_tls) {
    return absl::InvalidArgumentError(
        "server.metrics_tokens_dir: tokens are sent by TLS only; set server.tls, and no "
        "metrics_plaintext");
  }
  return settings;
}

}  // namespace lockstep::service
