#include "services/scheduler/scheduler_options.h"

#include <cstdint>

#include "common/base/status_macros.h"

namespace lockstep::scheduler {

absl::StatusOr<SchedulerOptions> ReadSchedulerOptions(const config::v1::SchedulerConfig& config) {
  SchedulerOptions options;
  LOCKSTEP_ASSIGN_OR_RETURN(options.server, service::ReadServerSettings(config.server()));
  LOCKSTEP_RETURN_IF_ERROR(service::CheckRequired("state_file", config.state_file()));
  options.state_file = config.state_file();
  SchedulerCore::Options& core = options.core;
  LOCKSTEP_ASSIGN_OR_RETURN(core.normal_mode, service::IsNormalMode(config.mode()));
  LOCKSTEP_ASSIGN_OR_RETURN(
      core.lease, service::SecondsOr("lease_seconds", config.lease_seconds(), 3, 0.1, 60));
  // A worker that does not answer a command for a whole lease could as well be gone.
  core.control_timeout = core.lease;
  LOCKSTEP_ASSIGN_OR_RETURN(
      core.ticket_expiry,
      service::SecondsOr("ticket_expiry_seconds", config.ticket_expiry_seconds(), 5, 0.1, 600));
  LOCKSTEP_ASSIGN_OR_RETURN(
      core.advance_tickets,
      service::IntegerOr("advance_tickets", config.advance_tickets(), 16, 1, 1024));
  if (config.no_advance_tickets()) core.advance_tickets = 0;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const int64_t queue_max,
      service::IntegerOr("queue_max", config.queue_max(), 131072, 1, 1 << 24));
  core.queue.requests_max = static_cast<size_t>(queue_max);
  LOCKSTEP_ASSIGN_OR_RETURN(core.accounting.horizon_tokens,
                            service::IntegerOr("reserve_horizon_tokens",
                                               config.reserve_horizon_tokens(), 256, 1, 1 << 24));
  LOCKSTEP_ASSIGN_OR_RETURN(
      core.accounting.overcommit_percent,
      service::IntegerOr("overcommit_percent", config.overcommit_percent(), 100, 100, 400));
  return options;
}

}  // namespace lockstep::scheduler
