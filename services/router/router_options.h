#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/service/server_settings.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/router/prefix_affine_policy.h"
#include "services/router/router_core.h"

namespace lockstep::router {

// RouterConfig after validation, defaults filled in.
struct RouterOptions {
  service::ServerSettings server;
  std::string scheduler;
  std::string router_id;
  PrefixAffinePolicy::Options policy;
  RouterCoreOptions core;
};

// INVALID_ARGUMENT names the field, its value and its range.
absl::StatusOr<RouterOptions> ReadRouterOptions(const config::v1::RouterConfig& config);

}  // namespace lockstep::router
