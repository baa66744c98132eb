#include "services/cli/cluster/cluster_layout.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/cli/cluster/local_ports.h"
#include "services/cli/model_flag.h"
#include "services/worker/model/model_name.h"
#include "services/worker/model/random_model.h"

namespace lockstep::cli {
namespace {

std::string Loopback(int port) { return absl::StrCat("127.0.0.1:", port); }

std::string Print(const google::protobuf::Message& config) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  return text;
}

// Fills the part that all roles share, and takes the configuration's text.
template <typename Config>
void Finish(const ClusterOptions& options, Config config, Member* member) {
  config::v1::ServerConfig* server = config.mutable_server();
  server->set_listen(member->address());
  server->set_metrics_listen(member->metrics_address());
  server->set_cluster_id("local");
  // All of it is on the loopback.
  server->set_plaintext(true);
  server->set_log_level(options.log_level);
  member->config = Print(config);
}

config::v1::GatewayConfig GatewayConfigOf(const ClusterOptions& options, const Member& router,
                                          const Member& scheduler) {
  config::v1::GatewayConfig config;
  config.add_routers(router.address());
  config.set_scheduler(scheduler.address());
  if (worker::NamesDirectory(options.model)) config.set_tokenizer_dir(options.model);
  return config;
}

config::v1::WorkerConfig WorkerConfigOf(const ClusterOptions& options, size_t index,
                                        const Member& worker, const Member& scheduler) {
  config::v1::WorkerConfig config;
  config.set_worker_id(worker.name);
  config.set_scheduler(scheduler.address());
  config.set_model(options.model);
  config.set_backend(options.backend);
  config.set_certificates_path(options.certificates_path);
  config.set_mode(options.mode);
  const int64_t cores = std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN));
  config.set_threads(options.threads > 0 ? options.threads
                                         : std::max<int64_t>(1, cores / options.workers));
  config.set_kv_bytes(options.kv_mib << 20);
  config.set_chunk_tokens(options.chunk_tokens);
  config.set_reduction_segments(options.reduction_segments);
  if (!options.tensor_parallel.empty()) {
    config.set_tensor_parallel(options.tensor_parallel[index % options.tensor_parallel.size()]);
  }
  return config;
}

absl::StatusOr<std::vector<int>> Ports(int first, int count) {
  if (first == 0) return FreePorts(count);
  std::vector<int> ports;
  for (int i = 0; i < count; ++i) ports.push_back(first + i);
  return ports;
}

absl::Status Check(const ClusterOptions& options, int port_count) {
  LOCKSTEP_CHECK_GE(options.workers, 1);
  LOCKSTEP_CHECK_LE(options.kv_mib, kKvMibMax);
  if (options.tensor_parallel.size() > static_cast<size_t>(options.workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tensor_parallel: ", options.tensor_parallel.size(), " numbers for ",
                     options.workers, " workers"));
  }
  if (options.port + port_count > 65536) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port: ", options.port, " is outside [0, ", 65536 - port_count, "]"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckModel(options.model));
  if (options.model.starts_with(worker::kRandomModel)) {
    LOCKSTEP_RETURN_IF_ERROR(worker::ParseRandomModel(options.model).status());
  }
  return absl::OkStatus();
}

}  // namespace

std::string Member::address() const { return Loopback(port); }
std::string Member::metrics_address() const { return Loopback(metrics_port); }

const Member& ClusterLayout::gateway() const { return members.back(); }

std::vector<int> ClusterLayout::ports() const {
  std::vector<int> ports;
  for (const Member& member : members) {
    ports.push_back(member.port);
    ports.push_back(member.metrics_port);
  }
  std::sort(ports.begin(), ports.end());
  return ports;
}

std::string DefaultRunDir(int port) {
  std::error_code missing;
  const std::filesystem::path directory = std::filesystem::temp_directory_path(missing);
  return ((missing ? std::filesystem::path("/tmp") : directory) / absl::StrCat("lockstep-", port))
      .string();
}

std::string PidPath(const std::string& run_dir, const std::string& member) {
  return absl::StrCat(run_dir, "/", member, ".pid");
}

absl::StatusOr<ClusterLayout> MakeLayout(const ClusterOptions& given) {
  const int port_count = 2 * (3 + given.workers);
  LOCKSTEP_RETURN_IF_ERROR(Check(given, port_count));
  ClusterOptions options = given;
  if (worker::NamesDirectory(options.model)) {
    options.model = std::filesystem::absolute(options.model).lexically_normal().string();
  }
  if (!options.certificates_path.empty()) {
    options.certificates_path = std::filesystem::absolute(options.certificates_path).string();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int> ports, Ports(options.port, port_count));
  size_t used = 0;
  const auto take = [&](std::string name, std::string role) {
    Member member{.name = std::move(name), .role = std::move(role)};
    member.port = ports[used++];
    member.metrics_port = ports[used++];
    return member;
  };
  Member gateway = take("gateway", "gateway");
  Member router = take("router", "router");
  Member scheduler = take("scheduler", "scheduler");

  ClusterLayout layout;
  layout.run_dir = options.run_dir.empty() ? DefaultRunDir(gateway.port) : options.run_dir;
  layout.run_dir = std::filesystem::absolute(layout.run_dir).lexically_normal().string();

  config::v1::SchedulerConfig scheduler_config;
  scheduler_config.set_state_file(layout.run_dir + "/scheduler.state");
  scheduler_config.set_reserve_horizon_tokens(options.reserve_horizon_tokens);
  scheduler_config.set_mode(options.mode);
  Finish(options, scheduler_config, &scheduler);
  config::v1::RouterConfig router_config;
  router_config.set_scheduler(scheduler.address());
  router_config.set_router_id("router");
  Finish(options, router_config, &router);
  Finish(options, GatewayConfigOf(options, router, scheduler), &gateway);

  layout.members = {scheduler, router};
  for (int i = 0; i < options.workers; ++i) {
    Member worker = take(absl::StrCat("worker-", i), "worker");
    Finish(options, WorkerConfigOf(options, static_cast<size_t>(i), worker, scheduler), &worker);
    layout.members.push_back(std::move(worker));
  }
  layout.members.push_back(std::move(gateway));
  LOCKSTEP_CHECK_EQ(used, ports.size());
  return layout;
}

}  // namespace lockstep::cli
