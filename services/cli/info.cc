#include <cstdio>

#include "common/base/status_macros.h"
#include "services/cli/connect_flags.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {
namespace {

absl::StatusOr<v1::GetServerInfoResponse> Ask(const char* verb, const char* summary,
                                              const Arguments& arguments) {
  ConnectFlags connect;
  connect.timeout = absl::Seconds(10);
  Flags flags(verb, summary);
  connect.AddTo(&flags);
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  return client::RolloutClient(reach).GetServerInfo();
}

}  // namespace

absl::Status RunInfo(const Arguments& arguments) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const v1::GetServerInfoResponse info,
      Ask("info", "Shows a cluster's contract, model and workers.", arguments));
  std::printf("%s", info.Utf8DebugString().c_str());
  return absl::OkStatus();
}

absl::Status RunWeights(const Arguments& arguments) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const v1::GetServerInfoResponse info,
      Ask("weights", "Shows version and digest of the weights in use.", arguments));
  std::printf("version %lld\ndigest  %s\n", static_cast<long long>(info.weight_version()),
              info.weights_digest().c_str());
  return absl::OkStatus();
}

}  // namespace lockstep::cli
