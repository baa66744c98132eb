#include "services/router/router_options.h"

#include "common/base/status_macros.h"

namespace lockstep::router {

absl::StatusOr<RouterOptions> ReadRouterOptions(const config::v1::RouterConfig& config) {
  RouterOptions options;
  LOCKSTEP_ASSIGN_OR_RETURN(options.server, service::ReadServerSettings(config.server()));
  LOCKSTEP_RETURN_IF_ERROR(service::CheckRequiredTarget("scheduler", config.scheduler()));
  LOCKSTEP_RETURN_IF_ERROR(service::CheckRequired("router_id", config.router_id()));
  options.scheduler = config.scheduler();
  options.router_id = config.router_id();
  const auto read = [](const char* field, int64_t value, int64_t fallback, int64_t low,
                       int64_t high) {
    return service::IntegerOr(field, value, fallback, low, high);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(options.policy.load_bound_percent,
                            read("load_bound_percent", config.load_bound_percent(),
                                 options.policy.load_bound_percent, 100, 1000));
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.policy.candidates_max,
      read("candidates_max", config.candidates_max(), options.policy.candidates_max, 1, 4));
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.core.affinity_tokens,
      read("affinity_tokens", config.affinity_tokens(), options.core.affinity_tokens, 1, 1 << 20));
  LOCKSTEP_ASSIGN_OR_RETURN(options.core.poison_limit, read("poison_limit", config.poison_limit(),
                                                            options.core.poison_limit, 1, 1000));
  LOCKSTEP_ASSIGN_OR_RETURN(options.core.sequences_max,
                            read("sequences_max", config.sequences_max(),
                                 options.core.sequences_max, 1, int64_t{1} << 24));
  LOCKSTEP_ASSIGN_OR_RETURN(options.core.prompt_bytes_max,
                            read("prompt_bytes_max", config.prompt_bytes_max(),
                                 options.core.prompt_bytes_max, 1, int64_t{1} << 40));
  return options;
}

}  // namespace lockstep::router
