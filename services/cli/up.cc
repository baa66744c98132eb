#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/signal_waiter.h"
#include "services/cli/cluster/supervisor.h"
#include "services/cli/connect_flags.h"
#include "services/cli/files.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {
namespace {

// Longer than a member's own drain (30 s and 10 s of hand-off), so that it is rarely cut short.
constexpr absl::Duration kStopPatience = absl::Seconds(45);

// Room for 320 KV blocks of the demo model: a batch of 257, a whole context of 8192 tokens, and few
// enough that `verify` can run it full.
constexpr int64_t kKvMib = 40;
// Tokens promised to a sequence at admission, below what `verify` lets it generate: over-commitment
// is what preemption is for, and a small cluster should show it.
constexpr int64_t kReserveHorizonTokens = 64;

void PrintAddresses(const ClusterLayout& layout) {
  std::printf("\nthe cluster is ready\n  %-12s %-22s %s\n", "process", "gRPC", "Prometheus");
  for (const Member& member : layout.members) {
    std::printf("  %-12s %-22s http://%s/metrics\n", member.name.c_str(), member.address().c_str(),
                member.metrics_address().c_str());
  }
  std::printf("trainers call %s; logs and configurations are in %s\n",
              layout.gateway().address().c_str(), layout.run_dir.c_str());
  std::fflush(stdout);
}

}  // namespace

absl::Status RunUp(const Arguments& arguments) {
  ClusterOptions options;
  int64_t workers = 2;
  int64_t port = kDefaultPort;
  absl::Duration start_timeout = absl::Minutes(2);
  options.model = "deploy/demo-model";
  options.kv_mib = kKvMib;
  options.tensor_parallel = {1};
  options.reserve_horizon_tokens = kReserveHorizonTokens;
  Flags flags("up", "Runs a cluster of real processes on the loopback until it is interrupted.");
  flags.Add(
      "model", &options.model,
      "Hugging Face directory, random:SHAPE (such as random:qwen3-tiny), or null: for no model");
  flags.Add("backend", &options.backend, "cpu or cuda; workers on one GPU share it");
  flags.Add("certificates", &options.certificates_path,
            "file of certificates for backend cuda; `lockstep certify` makes one");
  flags.Add("mode", &options.mode,
            "deterministic, or normal to measure what that costs (backend cuda)");
  flags.Add("workers", &workers, {1, kWorkersMax}, "worker processes");
  flags.Add("port", &port, {0, kPortMax},
            "of the gateway; the others follow it. 0 takes free ports");
  flags.Add("run_dir", &options.run_dir,
            "for configurations, logs and process ids; by default derived from the port");
  flags.Add("kv_mib", &options.kv_mib, {0, kKvMibMax},
            "KV of each rank of a worker, MiB; 0 is the worker's default");
  flags.Add("threads", &options.threads, {0, kThreadsMax}, "of one worker; 0 shares the cores");
  flags.Add("chunk_tokens", &options.chunk_tokens, {0, kChunkTokensMax},
            "prefill tokens a step; 0 is the default");
  flags.Add("reduction_segments", &options.reduction_segments, {0, kSegmentsMax},
            "of row-parallel sums, a power of two; 0 is the default, 1");
  flags.Add("tensor_parallel", &options.tensor_parallel, {1, kRanksMax},
            "ranks of each worker, such as 1,2: in turn when there are more workers");
  flags.Add("log_level", &options.log_level, "debug, info, warning or error");
  flags.Add("start_timeout", &start_timeout, {kWaitMin, kWaitMax},
            "longest wait until the cluster is ready");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  options.workers = static_cast<int>(workers);
  options.port = static_cast<int>(port);

  LOCKSTEP_ASSIGN_OR_RETURN(const auto signals, rpc::SignalWaiter::Create());
  LOCKSTEP_ASSIGN_OR_RETURN(const ClusterLayout layout, MakeLayout(options));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto supervisor, Supervisor::Create(layout, signals.get()));
  const std::string address_path = layout.run_dir + "/gateway.address";
  std::remove(address_path.c_str());
  // Written after the address of an earlier cluster is gone, so that both together are this one's.
  LOCKSTEP_RETURN_IF_ERROR(WriteFile(PidPath(layout.run_dir, "up"), absl::StrCat(getpid(), "\n")));
  std::printf("starting %lld workers with %s\n", static_cast<long long>(workers),
              options.model.c_str());
  std::fflush(stdout);
  const absl::Status started = supervisor->StartAll(absl::Now() + start_timeout);
  if (!started.ok()) return absl::IsAborted(started) ? absl::OkStatus() : started;
  // Whoever waits for the cluster waits for this file.
  LOCKSTEP_RETURN_IF_ERROR(WriteFile(address_path, layout.gateway().address() + "\n"));
  PrintAddresses(layout);
  supervisor->Supervise();
  std::printf("stopping: the gateway finishes what runs first\n");
  std::fflush(stdout);
  std::remove(address_path.c_str());
  supervisor->StopAll(kStopPatience);
  std::printf("stopped\n");
  return absl::OkStatus();
}

}  // namespace lockstep::cli
