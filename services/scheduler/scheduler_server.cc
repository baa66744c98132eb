#include "services/scheduler/scheduler_server.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/server.h"
#include "common/service/service_base.h"
#include "services/scheduler/core_host.h"
#include "services/scheduler/epoch_store.h"
#include "services/scheduler/grpc_worker_control.h"
#include "services/scheduler/scheduler_metrics.h"
#include "services/scheduler/scheduler_service.h"

namespace lockstep::scheduler {
namespace {

constexpr absl::Duration kTickPeriodMax = absl::Milliseconds(50);

std::vector<rpc::AccessRule> Access() {
  const std::string service = "/lockstep.v1.SchedulerService/";
  return {{service + "Register", {"worker"}}, {service + "Heartbeat", {"worker"}},
          {service + "Leave", {"worker"}},    {service + "WatchWorkers", {"router"}},
          {service + "Admit", {"router"}},    {service, {"gateway"}}};
}

}  // namespace

class SchedulerServer::Impl {
 public:
  explicit Impl(SchedulerOptions options) : options_(std::move(options)) {}
  ~Impl() {
    StopTicker();
    // No RPC is served once the server is gone, so the host's sinks are gone too.
    server_.reset();
    if (host_ != nullptr) host_->Shutdown();
  }

  absl::Status Start() {
    LOCKSTEP_ASSIGN_OR_RETURN(base_, service::ServiceBase::Create("scheduler", options_.server));
    metrics_.emplace(base_->registry());
    LOCKSTEP_ASSIGN_OR_RETURN(store_, EpochStore::Open(options_.state_file));
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<SchedulerCore> core,
                              SchedulerCore::Create(options_.core, base_->clock(), store_.get()));
    const CoreState state = core->state();
    const std::string& cluster_id = options_.server.cluster_id;
    host_ = std::make_shared<CoreHost>(
        CoreHost::Deps{.cluster_id = cluster_id,
                       .core = std::move(core),
                       .control = std::make_unique<GrpcWorkerControl>(
                           cluster_id, service::ChannelOptionsTo("worker", options_.server)),
                       .control_timeout = options_.core.control_timeout,
                       .metrics = &*metrics_,
                       .clock = base_->clock(),
                       .logger = base_->logger()});
    service_ = std::make_unique<SchedulerService>(
        SchedulerService::Options{.cluster_id = cluster_id, .lease = options_.core.lease}, host_);
    LOCKSTEP_ASSIGN_OR_RETURN(server_,
                              rpc::Server::Start(base_->ServerOptions(Access()), {service_.get()}));
    ticker_ = std::thread([this] { RunTicker(); });
    server_->health().SetStarted(true);
    server_->health().SetReady(true);
    base_->logger().Info("started", {{"port", server_->port()},
                                     {"scheduler_epoch", state.scheduler_epoch},
                                     {"admission_epoch", state.epoch},
                                     {"recovering", state.recovering}});
    return absl::OkStatus();
  }

  void Drain(absl::Time deadline) {
    server_->health().BeginDrain();
    host_->CloseAll(absl::UnavailableError("the scheduler shuts down"));
    server_->Drain(deadline);
    StopTicker();
    base_->logger().Info("stopped");
  }

  int port() const { return server_->port(); }
  std::string metrics_address() const { return base_->metrics_address(); }

 private:
  void RunTicker() {
    pthread_setname_np(pthread_self(), "sched-ticker");
    const absl::Duration period = std::min(kTickPeriodMax, options_.core.lease / 8);
    base::MutexLock lock(&mutex_);
    while (!stopping_) {
      stop_.WaitFor(&mutex_, period);
      host_->Tick();
    }
  }
  void StopTicker() {
    {
      base::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    stop_.NotifyAll();
    if (ticker_.joinable()) ticker_.join();
  }

  const SchedulerOptions options_;
  std::unique_ptr<service::ServiceBase> base_;
  std::optional<SchedulerMetrics> metrics_;
  std::unique_ptr<EpochStore> store_;
  std::shared_ptr<CoreHost> host_;
  std::unique_ptr<SchedulerService> service_;
  std::unique_ptr<rpc::Server> server_;
  base::Mutex mutex_;
  base::CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

absl::StatusOr<std::unique_ptr<SchedulerServer>> SchedulerServer::Start(SchedulerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  LOCKSTEP_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<SchedulerServer>(new SchedulerServer(std::move(impl)));
}

SchedulerServer::SchedulerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SchedulerServer::~SchedulerServer() = default;
int SchedulerServer::port() const { return impl_->port(); }
std::string SchedulerServer::metrics_address() const { return impl_->metrics_address(); }
void SchedulerServer::Drain(absl::Time deadline) { impl_->Drain(deadline); }

}  // namespace lockstep::scheduler
