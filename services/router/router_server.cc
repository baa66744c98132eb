#include "services/router/router_server.h"

#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/server.h"
#include "common/service/service_base.h"
#include "lockstep/v1/router.grpc.pb.h"
#include "services/router/core_driver.h"
#include "services/router/gateway_streams.h"
#include "services/router/router_options.h"
#include "services/router/scheduler_link.h"
#include "services/router/worker_patience.h"
#include "services/router/worker_streams.h"

namespace lockstep::router {
namespace {

// Deadlines, pauses and reconnects are looked at this often.
constexpr absl::Duration kTickPeriod = absl::Milliseconds(10);

class RouterService final : public v1::RouterService::CallbackService {
 public:
  explicit RouterService(GatewayStreams* streams) : streams_(streams) {}
  grpc::ServerBidiReactor<v1::RouteCommand, v1::RouteFrame>* Route(
      grpc::CallbackServerContext* context) override {
    return rpc::StartHandler<RouteHandler>(streams_, context);
  }

 private:
  GatewayStreams* const streams_;
};

}  // namespace

// Members are destroyed in reverse: the server before the streams it feeds, those before the core.
class RouterServer::Impl {
 public:
  Impl(RouterOptions options, std::unique_ptr<service::ServiceBase> base)
      : base_(std::move(base)),
        metrics_(base_->registry()),
        policy_(options.policy),
        workers_(options.server.cluster_id, WorkerChannelOptionsOf(options.server)),
        scheduler_({.cluster_id = options.server.cluster_id, .router_id = options.router_id},
                   rpc::MakeChannel(options.scheduler,
                                    service::ChannelOptionsTo("scheduler", options.server)),
                   base_->clock(), base_->logger()),
        driver_(options.core,
                {.policy = &policy_,
                 .clock = base_->clock(),
                 .metrics = &metrics_,
                 .logger = base_->logger()},
                [this](RouterActions actions, bool flush) { Send(std::move(actions), flush); }),
        service_(&gateways_) {
    gateways_.SetDriver(&driver_);
    workers_.SetDriver(&driver_);
    scheduler_.SetDriver(&driver_);
  }

  ~Impl() {
    if (server_ != nullptr) server_->Shutdown();
    if (ticker_.joinable()) {
      {
        base::MutexLock lock(&mutex_);
        stopping_ = true;
        changed_.NotifyAll();
      }
      ticker_.join();
    }
    driver_.StopSending();
    scheduler_.Shutdown();
    workers_.Shutdown();
  }

  absl::Status Start() {
    LOCKSTEP_ASSIGN_OR_RETURN(
        server_,
        rpc::Server::Start(base_->ServerOptions({{"/lockstep.v1.RouterService/", {"gateway"}}}),
                           {&service_}));
    ticker_ = std::thread([this] { RunTicker(); });
    server_->health().SetStarted(true);
    server_->health().SetReady(true);
    base_->logger().Info("router_serves", {{"port", server_->port()}});
    return absl::OkStatus();
  }

  void Drain(absl::Time deadline) {
    gateways_.BeginDrain();
    server_->Drain(deadline);
  }

  int port() const { return server_->port(); }
  const service::ServiceBase& base() const { return *base_; }

 private:
  // Channels to workers are made by Send, which has the lease by then.
  rpc::ChannelOptions WorkerChannelOptionsOf(const service::ServerSettings& settings) {
    rpc::ChannelOptions options = service::ChannelOptionsTo("worker", settings);
    options.keepalive_now = [this]() -> rpc::Keepalive {
      const WorkerPatience patience = PatienceFor(worker_lease_);
      return {.time = patience.silence, .timeout = patience.answer};
    };
    return options;
  }

  // Runs on whichever thread is the core's sender.
  void Send(RouterActions actions, bool flush) {
    for (const WorkerBatch& batch : actions.workers) worker_lease_ = batch.lease;
    workers_.Send(actions.workers);
    gateways_.Send(actions.entries, std::move(actions.deltas));
    // Last: nobody waits for what a released ticket frees as someone waits for a token.
    scheduler_.Send(actions);
    for (const StreamId stream : actions.closed_streams) workers_.Close(stream);
    if (!flush) return;
    scheduler_.Flush();
    workers_.Flush();
    gateways_.Flush();
  }

  void RunTicker() {
    base::MutexLock lock(&mutex_);
    while (!stopping_) {
      mutex_.Unlock();
      scheduler_.Tick();
      driver_.Tick();
      // Streams of gateways do not end by themselves; a drain waits for them.
      if (gateways_.draining() && driver_.Empty()) gateways_.FinishAll();
      mutex_.Lock();
      if (!stopping_) changed_.WaitFor(&mutex_, kTickPeriod);
    }
  }

  const std::unique_ptr<service::ServiceBase> base_;
  RouterMetrics metrics_;
  const PrefixAffinePolicy policy_;
  absl::Duration worker_lease_;  // The sender's own; the same for all workers.
  GatewayStreams gateways_;
  WorkerStreams workers_;
  SchedulerLink scheduler_;
  CoreDriver driver_;
  RouterService service_;
  std::unique_ptr<rpc::Server> server_;
  base::Mutex mutex_;
  base::CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticker_;
};

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(
    const config::v1::RouterConfig& config) {
  LOCKSTEP_ASSIGN_OR_RETURN(RouterOptions options, ReadRouterOptions(config));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<service::ServiceBase> base,
                            service::ServiceBase::Create("router", options.server));
  auto impl = std::make_unique<Impl>(std::move(options), std::move(base));
  LOCKSTEP_RETURN_IF_ERROR(impl->Start());
  return std::make_unique<RouterServer>(Private(), std::move(impl));
}

RouterServer::RouterServer(Private, std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RouterServer::~RouterServer() = default;

int RouterServer::port() const { return impl_->port(); }
std::string RouterServer::metrics_address() const { return impl_->base().metrics_address(); }
absl::Duration RouterServer::drain_finish() const { return impl_->base().settings().drain_finish; }
void RouterServer::Drain(absl::Time deadline) { impl_->Drain(deadline); }

}  // namespace lockstep::router
