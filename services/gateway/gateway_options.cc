#include "services/gateway/gateway_options.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::gateway {

using service::IntegerOr;
using service::SecondsOr;

absl::StatusOr<GatewayOptions> ReadGatewayOptions(const config::v1::GatewayConfig& config) {
  GatewayOptions o;
  LOCKSTEP_ASSIGN_OR_RETURN(o.server, service::ReadServerSettings(config.server()));
  if (config.routers().empty()) {
    return absl::InvalidArgumentError("routers: required, but not set");
  }
  for (const std::string& router : config.routers()) {
    const std::string field = absl::StrCat("routers[", o.routers.size(), "]");
    LOCKSTEP_RETURN_IF_ERROR(service::CheckRequiredTarget(field.c_str(), router));
    o.routers.push_back(router);
  }
  LOCKSTEP_RETURN_IF_ERROR(service::CheckRequiredTarget("scheduler", config.scheduler()));
  o.scheduler = config.scheduler();
  o.tokenizer_dir = config.tokenizer_dir();
  o.tokens_dir = config.tokens_dir();
  if (!o.tokens_dir.empty() && o.server.rpc.security == nullptr) {
    return absl::InvalidArgumentError("tokens_dir: tokens are sent by TLS only; set server.tls");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.connection_age,
      SecondsOr("connection_age_seconds", config.connection_age_seconds(), 30, 1, 86400));
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.default_deadline,
      SecondsOr("default_deadline_seconds", config.default_deadline_seconds(), 600, 0.1, 86400));
  LOCKSTEP_ASSIGN_OR_RETURN(o.sequences_max,
                            IntegerOr("sequences_max", config.sequences_max(), 65536, 1, 1 << 24));
  LOCKSTEP_ASSIGN_OR_RETURN(o.prompt_bytes_max,
                            IntegerOr("prompt_bytes_max", config.prompt_bytes_max(),
                                      int64_t{256} << 20, 1, int64_t{1} << 40));
  LOCKSTEP_ASSIGN_OR_RETURN(o.stream_slots,
                            IntegerOr("stream_slots", config.stream_slots(), 1024, 1, 65536));
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.stream_slots_total,
      IntegerOr("stream_slots_total", config.stream_slots_total(), 4096, 1, 1 << 20));
  LOCKSTEP_ASSIGN_OR_RETURN(o.stream_idle_timeout,
                            SecondsOr("stream_idle_timeout_seconds",
                                      config.stream_idle_timeout_seconds(), 60, 0.1, 86400));
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.orphan_grace,
      SecondsOr("orphan_grace_seconds", config.orphan_grace_seconds(), 30, 0.001, 86400));
  LOCKSTEP_ASSIGN_OR_RETURN(
      o.result_ttl, SecondsOr("result_ttl_seconds", config.result_ttl_seconds(), 60, 0.001, 86400));
  LOCKSTEP_ASSIGN_OR_RETURN(o.result_bytes_max,
                            IntegerOr("result_bytes_max", config.result_bytes_max(),
                                      int64_t{256} << 20, 1, int64_t{1} << 40));
  LOCKSTEP_ASSIGN_OR_RETURN(o.retry_budget,
                            IntegerOr("retry_budget", config.retry_budget(), 8, 1, 1000));
  return o;
}

}  // namespace lockstep::gateway
