#include "tests/support/cluster_harness.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "services/cli/cluster/local_ports.h"
#include "services/client/metrics_page.h"
#include "services/worker/model/model_name.h"

namespace lockstep::testing {
namespace {

std::string Address(int port) { return absl::StrCat("127.0.0.1:", port); }

std::string MakeDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "lockstep-cluster-XXXXXX";
  LOCKSTEP_CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

}  // namespace

ClusterHarness::ClusterHarness(Options options)
    : options_(std::move(options)), directory_(MakeDirectory()) {
  workers_.resize(options_.workers);
  const absl::StatusOr<std::vector<int>> ports = cli::FreePorts(6 + 2 * options_.workers);
  LOCKSTEP_CHECK(ports.ok()) << ports.status();
  size_t next = 0;
  for (int* port : {&scheduler_port_, &router_port_, &gateway_port_, &scheduler_metrics_,
                    &router_metrics_, &gateway_metrics_}) {
    *port = (*ports)[next++];
  }
  for (int i = 0; i < options_.workers; ++i) {
    worker_ports_.push_back((*ports)[next++]);
    worker_metrics_.push_back((*ports)[next++]);
  }
}

ClusterHarness::~ClusterHarness() {
  gateway_.reset();
  router_.reset();
  workers_.clear();
  scheduler_.reset();
  std::filesystem::remove_all(directory_);
}

config::v1::ServerConfig ClusterHarness::Server(const std::string& role, int port,
                                                int metrics_port) const {
  config::v1::ServerConfig server;
  server.set_listen(Address(port));
  server.set_metrics_listen(Address(metrics_port));
  server.set_cluster_id("test");
  server.set_log_level("error");
  server.set_message_bytes_max(options_.message_bytes_max);
  server.set_drain_finish_seconds(options_.drain_finish_seconds);
  if (options_.tls_directory.empty()) {
    server.set_plaintext(true);
    return server;
  }
  config::v1::TlsConfig* tls = server.mutable_tls();
  tls->set_certificate_file(absl::StrCat(options_.tls_directory, "/", role, ".pem"));
  tls->set_key_file(absl::StrCat(options_.tls_directory, "/", role, ".key"));
  tls->set_authorities_file(options_.tls_directory + "/authorities.pem");
  tls->set_reload_seconds(1);
  return server;
}

absl::StatusOr<rpc::ChannelOptions> ClusterHarness::TrainerChannel() const {
  if (options_.tls_directory.empty()) return rpc::ChannelOptions();
  const std::string path = options_.tls_directory + "/";
  LOCKSTEP_ASSIGN_OR_RETURN(auto security,
                            rpc::Security::Create({.certificate = path + "trainer.pem",
                                                   .key = path + "trainer.key",
                                                   .authorities = path + "authorities.pem"}));
  return rpc::ChannelOptions{.security = std::move(security), .peer_name = "gateway"};
}

absl::Status ClusterHarness::StartScheduler() {
  config::v1::SchedulerConfig config;
  *config.mutable_server() = Server("scheduler", scheduler_port_, scheduler_metrics_);
  config.set_lease_seconds(options_.lease_seconds);
  config.set_mode(options_.mode);
  config.set_state_file(directory_ + "/scheduler-state");
  config.set_reserve_horizon_tokens(options_.reserve_horizon_tokens);
  LOCKSTEP_ASSIGN_OR_RETURN(auto read, scheduler::ReadSchedulerOptions(config));
  LOCKSTEP_ASSIGN_OR_RETURN(scheduler_, scheduler::SchedulerServer::Start(std::move(read)));
  return absl::OkStatus();
}

absl::Status ClusterHarness::StartRouter() {
  config::v1::RouterConfig config;
  *config.mutable_server() = Server("router", router_port_, router_metrics_);
  config.set_scheduler(Address(scheduler_port_));
  config.set_router_id("router-0");
  LOCKSTEP_ASSIGN_OR_RETURN(router_, router::RouterServer::Start(config));
  return absl::OkStatus();
}

absl::Status ClusterHarness::StartWorker(int index, const std::string& model) {
  config::v1::WorkerConfig config;
  *config.mutable_server() = Server("worker", worker_ports_[index], worker_metrics_[index]);
  config.set_worker_id(absl::StrCat("worker-", index));
  config.set_scheduler(Address(scheduler_port_));
  config.set_model(model);
  config.set_backend(options_.backend);
  config.set_certificates_path(options_.certificates_path);
  config.set_mode(options_.mode);
  config.set_reduction_segments(options_.reduction_segments);
  config.set_tensor_parallel(options_.tensor_parallel);
  config.set_threads(1);
  config.set_kv_bytes(options_.kv_bytes);
  config.set_sequences_max(options_.sequences_max);
  config.set_split_kv_size(options_.split_kv_size);
  config.set_chunk_tokens(options_.chunk_tokens);
  LOCKSTEP_ASSIGN_OR_RETURN(auto read, worker::ReadWorkerOptions(config));
  const bool hooked = options_.hooked_worker < 0 || options_.hooked_worker == index;
  LOCKSTEP_ASSIGN_OR_RETURN(workers_[index], worker::WorkerServer::Start(
                                                 std::move(read), hooked ? options_.worker_hooks
                                                                         : worker::WorkerHooks{}));
  return absl::OkStatus();
}

absl::Status ClusterHarness::StartGateway() {
  config::v1::GatewayConfig config;
  *config.mutable_server() = Server("gateway", gateway_port_, gateway_metrics_);
  config.add_routers(Address(router_port_));
  config.set_scheduler(Address(scheduler_port_));
  config.set_tokenizer_dir(options_.tokenizer_directory);
  if (options_.tokenizer_directory.empty() && worker::NamesDirectory(options_.model)) {
    config.set_tokenizer_dir(options_.model);
  }
  config.set_tokens_dir(options_.tokens_directory);
  config.set_sequences_max(options_.gateway_sequences_max);
  config.set_stream_slots_total(options_.stream_slots_total);
  config.set_orphan_grace_seconds(options_.orphan_grace_seconds);
  config.set_stream_idle_timeout_seconds(options_.stream_idle_timeout_seconds);
  LOCKSTEP_ASSIGN_OR_RETURN(auto read, gateway::ReadGatewayOptions(config));
  gateway_.reset();  // One that drained still has the port.
  LOCKSTEP_ASSIGN_OR_RETURN(gateway_, gateway::GatewayServer::Start(std::move(read)));
  LOCKSTEP_ASSIGN_OR_RETURN(const rpc::ChannelOptions channel, TrainerChannel());
  gateway_channel_ = rpc::MakeChannel(Address(gateway_port_), channel);
  stub_ = v1::RolloutService::NewStub(gateway_channel_);
  return absl::OkStatus();
}

absl::Status ClusterHarness::Start() {
  LOCKSTEP_RETURN_IF_ERROR(StartScheduler());
  LOCKSTEP_RETURN_IF_ERROR(StartRouter());
  for (int i = 0; i < options_.workers; ++i) LOCKSTEP_RETURN_IF_ERROR(StartWorker(i));
  LOCKSTEP_RETURN_IF_ERROR(StartGateway());
  if (!WaitForWorkers(options_.workers)) {
    return absl::DeadlineExceededError("the workers did not join in time");
  }
  const bool ready = WaitUntil([this] {
    return rpc::CheckHealth(gateway_channel_, "ready", absl::Seconds(5)).value_or(false);
  });
  if (!ready) return absl::DeadlineExceededError("the gateway was not ready in time");
  return absl::OkStatus();
}

std::string ClusterHarness::gateway_address() const { return Address(gateway_port_); }
std::string ClusterHarness::worker_address(int index) const {
  return Address(worker_ports_[index]);
}

std::string ClusterHarness::scheduler_address() const { return Address(scheduler_port_); }
std::string ClusterHarness::router_address() const { return Address(router_port_); }

bool ClusterHarness::WaitForWorkers(int count) {
  return WaitUntil([&] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    v1::GetServerInfoResponse info;
    return stub_->GetServerInfo(&context, {}, &info).ok() && info.workers_size() == count;
  });
}

bool ClusterHarness::WaitUntil(absl::FunctionRef<bool()> condition, absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  base::Mutex mutex;
  base::CondVar pause;
  while (!condition()) {
    if (absl::Now() > end) return false;
    base::MutexLock lock(&mutex);
    pause.WaitFor(&mutex, absl::Milliseconds(5));
  }
  return true;
}

double ClusterHarness::ReadMetric(const std::string& role, int port,
                                  const std::string& name) const {
  const bool tls = !options_.tls_directory.empty();
  const absl::StatusOr<client::MetricsPage> page = client::MetricsPage::Fetch(
      absl::StrCat(tls ? "https://" : "", Address(port)),
      {.authorities = options_.tls_directory + "/authorities.pem", .peer_name = role});
  return page.ok() ? page->Sum(name) : 0;
}

double ClusterHarness::WorkerMetric(int index, const std::string& name) const {
  return ReadMetric("worker", worker_metrics_[index], name);
}
double ClusterHarness::RouterMetric(const std::string& name) const {
  return ReadMetric("router", router_metrics_, name);
}
double ClusterHarness::SchedulerMetric(const std::string& name) const {
  return ReadMetric("scheduler", scheduler_metrics_, name);
}
double ClusterHarness::GatewayMetric(const std::string& name) const {
  return ReadMetric("gateway", gateway_metrics_, name);
}

}  // namespace lockstep::testing
