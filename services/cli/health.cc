#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "services/cli/connect_flags.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {

absl::Status RunHealth(const Arguments& arguments) {
  ConnectFlags connect;
  connect.timeout = absl::Seconds(5);
  std::string service = "ready";
  Flags flags("health", "Exit code 0 when the process behind --target says that it is healthy.");
  connect.AddTo(&flags);
  flags.Add("service", &service, "live, started or ready");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(const rpc::ChannelOptions channel, connect.Channel());
  LOCKSTEP_ASSIGN_OR_RETURN(
      const bool healthy,
      rpc::CheckHealth(rpc::MakeChannel(connect.target, channel), service, connect.timeout));
  if (!healthy) {
    return absl::UnavailableError(absl::StrCat(connect.target, " is not ", service));
  }
  std::printf("%s is %s\n", connect.target.c_str(), service.c_str());
  return absl::OkStatus();
}

}  // namespace lockstep::cli
