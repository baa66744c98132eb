#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/config/text_proto.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "common/service/server_settings.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/cli/cluster/local_ports.h"
#include "services/cli/connect_flags.h"
#include "services/cli/verbs.h"
#include "services/client/unreached.h"

namespace lockstep::cli {
namespace {

// Whom to ask, and how.
struct Subject {
  std::string target;
  rpc::ChannelOptions channel;
};

template <typename Config>
absl::StatusOr<config::v1::ServerConfig> ServerOf(const std::vector<std::string>& paths) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Config config, config::LoadTextProtos<Config>(paths));
  return config.server();
}

absl::StatusOr<config::v1::ServerConfig> ServerOf(const std::string& role,
                                                  const std::vector<std::string>& paths) {
  if (role == "gateway") return ServerOf<config::v1::GatewayConfig>(paths);
  if (role == "router") return ServerOf<config::v1::RouterConfig>(paths);
  if (role == "scheduler") return ServerOf<config::v1::SchedulerConfig>(paths);
  if (role == "worker") return ServerOf<config::v1::WorkerConfig>(paths);
  return absl::InvalidArgumentError(
      absl::StrCat("--role: \"", role, "\" is none of gateway, router, scheduler, worker"));
}

// Files that became unusable keep nobody from serving whom he serves, so they must not end him.
absl::Status CheckListens(const config::v1::ServerConfig& server, const absl::Status& why) {
  int port = 0;
  const std::string& listen = server.listen();
  if (!absl::SimpleAtoi(listen.substr(std::min(listen.rfind(':'), listen.size() - 1) + 1), &port) ||
      CheckPortsFree({port}).ok()) {
    return why;
  }
  std::printf("%s is listened on; it cannot be asked: %s\n", listen.c_str(),
              std::string(why.message()).c_str());
  return absl::OkStatus();
}

// The process of this machine that has this configuration, asked with its own certificate.
absl::StatusOr<Subject> SubjectOf(const std::string& role, const config::v1::ServerConfig& server) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto settings, service::ReadServerSettings(server));
  const std::string& listen = settings.rpc.address;
  return Subject{
      absl::StrCat("127.0.0.1", listen.substr(std::min(listen.rfind(':'), listen.size()))),
      service::ChannelOptionsTo(role, settings)};
}

}  // namespace

absl::Status RunHealth(const Arguments& arguments) {
  ConnectFlags connect;
  connect.timeout = absl::Seconds(5);
  std::string service = "ready";
  std::string role;
  std::vector<std::string> paths;
  Flags flags(
      "health",
      "Exit code 0 when the process behind --target says that it is healthy; or the one on\n"
      "this machine with this --role and --config, which say all about the connection.");
  connect.AddTo(&flags);
  flags.Add("service", &service, "live, started or ready");
  flags.Add("role", &role, "gateway, router, scheduler or worker");
  flags.Add("config", &paths, "as given to the process");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  if (service != "live" && service != "started" && service != "ready") {
    return absl::InvalidArgumentError(
        absl::StrCat("--service: '", service, "' is none of live, started, ready"));
  }
  if (role.empty() != paths.empty()) {
    return absl::InvalidArgumentError("--role and --config go together");
  }
  if (!role.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(flags.CheckNotGiven(
        {"target", "authorities", "certificate", "key", "server_name", "token_file"},
        "not with --role, whose configuration says it"));
  }
  Subject subject = {.target = connect.target};
  if (role.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(subject.channel, connect.Channel());
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(const config::v1::ServerConfig server, ServerOf(role, paths));
    absl::StatusOr<Subject> found = SubjectOf(role, server);
    if (!found.ok() && service == "live" && server.has_tls())
      return CheckListens(server, found.status());
    LOCKSTEP_ASSIGN_OR_RETURN(subject, std::move(found));
  }
  const absl::Time begin = absl::Now();
  const absl::StatusOr<bool> healthy =
      rpc::CheckHealth(rpc::MakeChannel(subject.target, subject.channel), service, connect.timeout);
  if (!healthy.ok()) {
    return client::WithAttempts(healthy.status(), subject.target, subject.channel,
                                {.time = absl::Now() - begin});
  }
  if (!*healthy) {
    return absl::UnavailableError(absl::StrCat(subject.target, " is not ", service));
  }
  std::printf("%s is %s\n", subject.target.c_str(), service.c_str());
  return absl::OkStatus();
}

}  // namespace lockstep::cli
