#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/service/server_settings.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/scheduler/scheduler_core.h"

namespace lockstep::scheduler {

// SchedulerConfig with defaults filled in and ranges checked.
struct SchedulerOptions {
  service::ServerSettings server;
  std::string state_file;
  SchedulerCore::Options core;
};

// INVALID_ARGUMENT names the field, its value and its range.
absl::StatusOr<SchedulerOptions> ReadSchedulerOptions(const config::v1::SchedulerConfig& config);

}  // namespace lockstep::scheduler
