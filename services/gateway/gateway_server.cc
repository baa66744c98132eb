#include "services/gateway/gateway_server.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/server.h"
#include "common/service/service_base.h"
#include "services/gateway/gateway_service.h"
#include "services/gateway/route_pool.h"

namespace lockstep::gateway {
namespace {

constexpr absl::Duration kTickPause = absl::Milliseconds(5);
constexpr absl::Duration kSweepPause = absl::Milliseconds(50);
constexpr absl::Duration kInfoPause = absl::Milliseconds(500);
// Clients that were given a part back, or an answer, ask again at once over the connection that
// they have. For so long they are refused, and go elsewhere; a call that reaches the end of a
// connection would be left without a status of ours.
constexpr absl::Duration kHandBackPause = absl::Milliseconds(200);
constexpr absl::Duration kInfoPauseUntilFirst = absl::Milliseconds(50);

// Roles of clients. A trainer cannot change what concerns other trainers too.
constexpr char kTrainer[] = "trainer";
constexpr char kOperator[] = "operator";

std::vector<rpc::AccessRule> Access() {
  std::vector<rpc::AccessRule> rules;
  const std::string service = "/lockstep.v1.RolloutService/";
  for (const char* method : {"Pause", "Resume", "UpdateWeights", "SetWeightVersion", "FlushCache",
                             "ReleaseMemory", "ResumeMemory"}) {
    rules.push_back({service + method, {kOperator}});
  }
  rules.push_back({service, {kTrainer, kOperator}});
  return rules;
}

absl::StatusOr<rpc::ServerOptions> ServerOptionsOf(const GatewayOptions& options,
                                                   service::ServiceBase& base,
                                                   GatewayMetrics* metrics) {
  rpc::ServerOptions server = base.ServerOptions(Access());
  server.connection_age_max = options.connection_age;
  server.on_refused = [metrics, log = std::move(server.on_refused)](absl::string_view method,
                                                                    const absl::Status& why) {
    metrics->requests[why.code()].Increment();
    log(method, why);
  };
  if (options.tokens_dir.empty()) return server;
  LOCKSTEP_ASSIGN_OR_RETURN(server.tokens,
                            base.ReadTokens(options.tokens_dir, {kTrainer, kOperator}));
  server.client_certificates = rpc::ClientCertificates::kOptional;
  return server;
}

std::optional<OwnTokenizer> OwnTokenizerOf(const GatewayOptions& options,
                                           const text::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return std::nullopt;
  return OwnTokenizer{.file = options.tokenizer_dir + "/tokenizer.json",
                      .digest = tokenizer->digest().ToString()};
}

}  // namespace

class GatewayServer::Impl {
 public:
  explicit Impl(GatewayOptions options) : options_(std::move(options)) {}
  ~Impl();
  absl::Status Start();
  int port() const { return server_->port(); }
  void Drain(absl::Time deadline);

 private:
  // The ticker's work, on its thread "gateway-ticker".
  void RunTicker();
  void AskClusterInfo(absl::Time now);
  // Ready once the model is known, since until then every request is refused, whoever leaves later;
  // and only while the tokenizer is the model's.
  void NoteReady();
  bool AnyRunning() const { return !table_->Running().empty(); }

  const GatewayOptions options_;
  std::unique_ptr<service::ServiceBase> base_;
  std::unique_ptr<GatewayMetrics> metrics_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::unique_ptr<v1::SchedulerService::StubInterface> scheduler_;
  // Shared with the calls that are under way when the gateway ends.
  std::shared_ptr<ClusterView> cluster_;
  ThroughputMeter throughput_;
  ManyStreams streams_;
  SlotPool slots_{options_.stream_slots_total};
  rpc::DrainState drain_;
  std::unique_ptr<RequestTable> table_;
  std::unique_ptr<RoutePool> routes_;
  std::unique_ptr<RequestStarter> starter_;
  std::unique_ptr<LongWorkThread> long_work_;
  std::unique_ptr<GatewayService> service_;
  std::unique_ptr<rpc::Server> server_;

  base::Mutex mutex_;
  base::CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time next_info_ = absl::InfinitePast();  // The ticker's own, as the next one.
  absl::Status noted_;  // Why requests are refused, as health and log say it.
  std::thread ticker_;
};

absl::Status GatewayServer::Impl::Start() {
  LOCKSTEP_ASSIGN_OR_RETURN(base_, service::ServiceBase::Create("gateway", options_.server));
  metrics_ = std::make_unique<GatewayMetrics>(base_->registry());
  if (!options_.tokenizer_dir.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(tokenizer_, text::Tokenizer::Load(options_.tokenizer_dir));
  }
  cluster_ = std::make_shared<ClusterView>(OwnTokenizerOf(options_, tokenizer_.get()));
  noted_ = cluster_->Limits().status();
  scheduler_ = v1::SchedulerService::NewStub(rpc::MakeChannel(
      options_.scheduler, service::ChannelOptionsTo("scheduler", options_.server)));
  table_ = std::make_unique<RequestTable>(
      RequestTable::Options{.result_ttl = options_.result_ttl,
                            .orphan_grace = options_.orphan_grace,
                            .result_bytes_max = options_.result_bytes_max,
                            .sequences_max = options_.sequences_max,
                            .prompt_bytes_max = options_.prompt_bytes_max},
      base_->clock(), metrics_.get(), base_->logger());
  routes_ = std::make_unique<RoutePool>(options_.routers,
                                        service::ChannelOptionsTo("router", options_.server),
                                        metrics_.get(), base_->logger());
  starter_ = std::make_unique<RequestStarter>(
      RequestStarter::Options{.default_deadline = options_.default_deadline,
                              .retry_budget = options_.retry_budget},
      tokenizer_, cluster_.get(), table_.get(), &drain_,
      Generation::Deps{.routes = routes_.get(),
                       .clock = base_->clock(),
                       .metrics = metrics_.get(),
                       .logger = base_->logger()});
  long_work_ = std::make_unique<LongWorkThread>(&metrics_->long_work);
  service_ = std::make_unique<GatewayService>(options_,
                                              GatewayService::Parts{.starter = starter_.get(),
                                                                    .long_work = long_work_.get(),
                                                                    .table = table_.get(),
                                                                    .cluster = cluster_.get(),
                                                                    .streams = &streams_,
                                                                    .slots = &slots_,
                                                                    .scheduler = scheduler_.get(),
                                                                    .tokenizer = tokenizer_,
                                                                    .throughput = &throughput_,
                                                                    .clock = base_->clock()});
  LOCKSTEP_ASSIGN_OR_RETURN(const rpc::ServerOptions server,
                            ServerOptionsOf(options_, *base_, metrics_.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(server_, rpc::Server::Start(server, {service_.get()}));
  ticker_ = std::thread([this] { RunTicker(); });
  server_->health().SetStarted(true);
  base_->logger().Info("serving", {{"port", server_->port()}});
  return absl::OkStatus();
}

void GatewayServer::Impl::RunTicker() {
  absl::Time next_sweep = absl::InfinitePast();
  base::MutexLock lock(&mutex_);
  while (!stopping_) {
    mutex_.Unlock();
    const absl::Time now = base_->clock()->Now();
    routes_->Tick();
    NoteReady();
    if (now >= next_sweep) {
      table_->Sweep();
      streams_.Tick(now, drain_.phase() != rpc::DrainState::Phase::kServing);
      metrics_->stream_slots_used.Set(static_cast<double>(slots_.used()));
      metrics_->streams_waiting.Set(static_cast<double>(slots_.waiting()));
      throughput_.Read(now, metrics_->generated_tokens.value());
      next_sweep = now + kSweepPause;
    }
    if (now >= next_info_) AskClusterInfo(now);
    mutex_.Lock();
    if (!stopping_) stop_.WaitFor(&mutex_, kTickPause);
  }
}

void GatewayServer::Impl::NoteReady() {
  const absl::Status refusal = cluster_->Limits().status();
  if (refusal == noted_) return;
  noted_ = refusal;
  server_->health().SetReady(refusal.ok());
  if (refusal.ok()) return base_->logger().Info("ready", {});
  base_->logger().Error("wrong_tokenizer", {{"error", refusal}});
}

void GatewayServer::Impl::AskClusterInfo(absl::Time now) {
  next_info_ = now + (cluster_->Look().ok() ? kInfoPause : kInfoPauseUntilFirst);
  v1::GetClusterInfoRequest request;
  request.set_cluster_id(options_.server.cluster_id);
  using Scheduler = v1::SchedulerService::StubInterface::async_interface;
  rpc::CallUnary(
      scheduler_->async(), &Scheduler::GetClusterInfo, std::move(request),
      {.deadline = now + absl::Seconds(2)},
      [cluster = cluster_, bytes = static_cast<int64_t>(options_.server.rpc.message_bytes_max)](
          absl::StatusOr<v1::GetClusterInfoResponse> info) {
        if (info.ok()) cluster->Update(*info, bytes);
      });
}

void GatewayServer::Impl::Drain(absl::Time deadline) {
  server_->health().BeginDrain();
  drain_.BeginDrain();
  base_->logger().Info("draining", {});
  const absl::Time finish =
      std::min(deadline, base_->clock()->Now() + options_.server.drain_finish);
  base::Mutex pause_mutex;
  base::CondVar pause;
  while (AnyRunning() && base_->clock()->Now() < finish) {
    base::MutexLock lock(&pause_mutex);
    pause.WaitFor(&pause_mutex, kSweepPause);
  }
  for (const auto& generation : table_->Running()) {
    generation->EndEarly(v1::FINISH_REASON_PARTIAL);
  }
  {
    base::MutexLock lock(&pause_mutex);
    pause.WaitFor(&pause_mutex, std::min(kHandBackPause, deadline - base_->clock()->Now()));
  }
  server_->Drain(deadline);
}

GatewayServer::Impl::~Impl() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    stop_.NotifyAll();
  }
  if (ticker_.joinable()) ticker_.join();
  if (server_ != nullptr) server_->Shutdown();
  long_work_.reset();
  // Handlers are gone; nothing of the routes may reach a generation any longer.
  routes_.reset();
}

GatewayServer::GatewayServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GatewayServer::~GatewayServer() = default;

absl::StatusOr<std::unique_ptr<GatewayServer>> GatewayServer::Start(GatewayOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  LOCKSTEP_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<GatewayServer>(new GatewayServer(std::move(impl)));
}

int GatewayServer::port() const { return impl_->port(); }
void GatewayServer::Drain(absl::Time deadline) { impl_->Drain(deadline); }

}  // namespace lockstep::gateway
