#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/config/text_proto.h"
#include "common/rpc/signal_waiter.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/cli/verbs.h"
#include "services/cli/worker_role.h"
#include "services/gateway/gateway_server.h"
#include "services/router/router_server.h"
#include "services/scheduler/scheduler_server.h"
#include "services/worker/worker_server.h"

namespace lockstep::cli {
namespace {

// After `drain_finish` a service hands off what still runs; this is for that and for its answers.
constexpr absl::Duration kHandOffGrace = absl::Seconds(10);
// How often a worker's engine is asked whether it still works.
constexpr absl::Duration kHealthPeriod = absl::Milliseconds(200);

// The allocator gives every thread a heap of its own until there are eight for each core. More than
// can run at once only scatter what is free, and a server keeps growing long after its load has
// stopped to. Called before there are threads.
void LimitHeaps() {
  constexpr long kHeapsMin = 2;
  mallopt(M_ARENA_MAX, static_cast<int>(std::max(kHeapsMin, sysconf(_SC_NPROCESSORS_ONLN))));
}

// A start can take as long as a model is large, and until it is over nothing is served that could
// be drained: then a signal ends the process at once, as a drain does. Files are renamed into their
// places, so that none is left half written.
void LeaveAtOnce(int /*signal*/) {
  constexpr char kText[] = "lockstep: told to end while nothing is served\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(0);
}

void LeaveAtOnceOnSignals() {
  struct sigaction action = {};
  action.sa_handler = LeaveAtOnce;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

// What every role begins with.
template <typename Config>
absl::StatusOr<Config> BeginRole(const char* role, const Arguments& arguments) {
  std::vector<std::string> paths;
  LimitHeaps();
  LeaveAtOnceOnSignals();
  Flags flags(role, "Serves until SIGTERM or SIGINT, then drains and exits.");
  flags.Require("config", &paths,
                "text proto with this role's configuration; more files add to it");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  return config::LoadTextProtos<Config>(paths);
}

absl::Time DrainDeadline(absl::Duration drain_finish) {
  return absl::Now() + drain_finish + kHandOffGrace;
}

}  // namespace

// From its start on a server is drained: the waiter takes the place of LeaveAtOnce.

absl::Status RunGateway(const Arguments& arguments) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto config,
                            BeginRole<config::v1::GatewayConfig>("gateway", arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(auto options, gateway::ReadGatewayOptions(config));
  const absl::Duration drain_finish = options.server.drain_finish;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto server, gateway::GatewayServer::Start(std::move(options)));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto signals, rpc::SignalWaiter::Create());
  signals->Wait();
  server->Drain(DrainDeadline(drain_finish));
  return absl::OkStatus();
}

absl::Status RunRouter(const Arguments& arguments) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto config,
                            BeginRole<config::v1::RouterConfig>("router", arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto server, router::RouterServer::Start(config));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto signals, rpc::SignalWaiter::Create());
  signals->Wait();
  server->Drain(DrainDeadline(server->drain_finish()));
  return absl::OkStatus();
}

absl::Status RunScheduler(const Arguments& arguments) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto config,
                            BeginRole<config::v1::SchedulerConfig>("scheduler", arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(auto options, scheduler::ReadSchedulerOptions(config));
  const absl::Duration drain_finish = options.server.drain_finish;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto server,
                            scheduler::SchedulerServer::Start(std::move(options)));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto signals, rpc::SignalWaiter::Create());
  signals->Wait();
  server->Drain(DrainDeadline(drain_finish));
  return absl::OkStatus();
}

// Of a worker whose device is lost, hangs or computes wrong bits. Its threads may be stuck in the
// device, and unwinding would wait for them; there is nothing to save, since its sequences go on
// elsewhere.
[[noreturn]] void ExitAtOnce(worker::WorkerServer* server) {
  std::fprintf(stderr, "lockstep worker: %s\n", server->health().ToString().c_str());
  server->LeaveFailed();
  std::_Exit(1);
}

absl::Status ServeWorker(const Arguments& arguments, const worker::WorkerHooks& hooks) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto config,
                            BeginRole<config::v1::WorkerConfig>("worker", arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(auto options, worker::ReadWorkerOptions(config));
  const absl::Duration drain_finish = options.server.drain_finish;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto server,
                            worker::WorkerServer::Start(std::move(options), hooks));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto signals, rpc::SignalWaiter::Create());
  while (!signals->Wait(kHealthPeriod).has_value()) {
    if (!server->health().ok()) ExitAtOnce(server.get());
  }
  server->Drain(DrainDeadline(drain_finish));
  if (!server->health().ok()) ExitAtOnce(server.get());
  return absl::OkStatus();
}

absl::Status RunWorker(const Arguments& arguments) { return ServeWorker(arguments, {}); }

}  // namespace lockstep::cli
