#include "services/worker/worker_server.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/port_check.h"
#include "common/rpc/server.h"
#include "common/service/service_base.h"
#include "kernels/factory.h"
#include "services/text/tokenizer.h"
#include "services/worker/certification.h"
#include "services/worker/engine/engine_loop.h"
#include "services/worker/engine/engine_metrics.h"
#include "services/worker/liveness_watch.h"
#include "services/worker/model/model_factory.h"
#include "services/worker/scheduler_link.h"
#include "services/worker/worker_service.h"
#include "services/worker/wrong_bits_mark.h"

namespace lockstep::worker {
namespace {

// A layer of the largest model takes seconds on a slow CPU; a hung device never comes back.
constexpr absl::Duration kHangPatience = absl::Seconds(60);
// What an engine that runs until the end of a drain has to end its step.
constexpr absl::Duration kLastStepPatience = absl::Seconds(2);
constexpr absl::Duration kDrainPoll = absl::Milliseconds(20);
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);
// Sequences of a worker that failed wait for it.
constexpr absl::Duration kFarewellTimeout = absl::Milliseconds(500);
// Routers ping after a second of silence.
constexpr absl::Duration kPingIntervalMin = absl::Milliseconds(500);

// The tokenizer beside the model; null when there is none.
absl::StatusOr<std::shared_ptr<const text::Tokenizer>> LoadTokenizer(const std::string& model) {
  if (!NamesDirectory(model) || !std::filesystem::exists(model + "/tokenizer.json")) return nullptr;
  return text::Tokenizer::Load(model);
}

// Of the CPU backend: what one rank gets of the threads.
int ThreadsOfRank(const WorkerOptions& options) {
  const int64_t all =
      options.threads > 0 ? options.threads : int64_t{std::thread::hardware_concurrency()};
  return static_cast<int>(std::max<int64_t>(1, all / options.tensor_parallel));
}

absl::StatusOr<LoadedModel> LoadOnBackend(const WorkerOptions& options,
                                          const ModelOptions& model_options,
                                          const WorkerHooks& hooks) {
  if (options.model == kNullModel) return LoadModel(model_options, nullptr);
  const int ranks = static_cast<int>(options.tensor_parallel);
  kernels::BackendOptions backend = {.backend = options.backend,
                                     .threads = ThreadsOfRank(options),
                                     .certificates_path = options.certificates_path,
                                     .normal = options.normal,
                                     .shadows = options.shadow_every_steps > 0};
  const auto make = [&](std::shared_ptr<kernels::Collective> end)
      -> absl::StatusOr<std::unique_ptr<kernels::KernelSet>> {
    kernels::BackendOptions own = backend;
    own.collective = std::move(end);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<kernels::KernelSet> kernels,
                              kernels::CreateKernelSet(own));
    return hooks.wrap_kernels ? hooks.wrap_kernels(std::move(kernels)) : std::move(kernels);
  };
  if (ranks == 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<kernels::KernelSet> kernels, make(nullptr));
    return LoadModel(model_options, std::move(kernels));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::shared_ptr<kernels::CollectiveGroup> group,
      kernels::CreateCollectiveGroup(options.backend, ranks, hooks.rank_patience));
  return LoadModelOnRanks(model_options, group, [&](int rank) { return make(group->End(rank)); });
}

absl::StatusOr<LoadedModel> Load(const WorkerOptions& options, const WorkerHooks& hooks,
                                 const text::Tokenizer* tokenizer) {
  ModelOptions model_options = ModelOptionsOf(options);
  if (tokenizer != nullptr) model_options.vocabulary_sampled = tokenizer->vocab_size();
  LOCKSTEP_ASSIGN_OR_RETURN(LoadedModel model, LoadOnBackend(options, model_options, hooks));
  if (hooks.wrap_executor) model.executor = hooks.wrap_executor(std::move(model.executor));
  return model;
}

v1::ContractFingerprint MakeFingerprint(const FingerprintParts& parts,
                                        const text::Tokenizer* tokenizer) {
  v1::ContractFingerprint fingerprint;
  fingerprint.set_contract_version(parts.contract_version);
  fingerprint.set_backend(parts.backend);
  fingerprint.set_architecture(parts.architecture);
  fingerprint.set_mode(parts.deterministic ? v1::MODE_DETERMINISTIC : v1::MODE_NORMAL);
  fingerprint.set_reduction_segments(parts.reduction_segments);
  fingerprint.set_split_kv_size(parts.split_kv_size);
  fingerprint.set_kv_block_tokens(parts.kv_block_tokens);
  fingerprint.set_rope_digest(parts.rope_digest);
  fingerprint.set_logits_type(parts.logits_type);
  fingerprint.set_kv_type(parts.kv_type);
  fingerprint.set_vocabulary_sampled(parts.vocabulary_sampled);
  fingerprint.set_model_digest(parts.model_digest);
  if (tokenizer != nullptr) fingerprint.set_tokenizer_digest(tokenizer->digest().ToString());
  return fingerprint;
}

// host of "host:port", as others can reach it.
std::string HostOf(const std::string& listen) { return listen.substr(0, listen.rfind(':')); }

}  // namespace

class WorkerServer::Impl {
 public:
  explicit Impl(WorkerOptions options) : options_(std::move(options)) {}
  ~Impl();
  absl::Status Start(const WorkerHooks& hooks);
  int port() const { return server_->port(); }
  absl::Status health() const;
  void LeaveFailed();
  void Drain(absl::Time deadline);

 private:
  v1::RegisterRequest Registration() const;
  std::string wrong_bits_mark() const {
    return WrongBitsMarkPath(options_.certificates_path, options_.worker_id);
  }
  void EndThisLife();
  void WatchEngine(const EngineSnapshot& snapshot);
  // The engine hangs: nothing waits for it any more, and health() tells why the process should end.
  void GiveUpEngine(absl::Status why);
  // True when nothing runs any longer; false when `until` passed first, or the engine is given up.
  bool WaitIdle(absl::Time until);

  const WorkerOptions options_;
  std::unique_ptr<service::ServiceBase> base_;
  std::unique_ptr<EngineMetrics> metrics_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  LoadedModel model_;
  std::unique_ptr<LeaseFence> fence_;
  StepReport report_;
  absl::Duration hang_patience_ = kHangPatience;
  std::optional<LivenessWatch> liveness_;  // The scheduler link's thread's own.
  mutable base::Mutex mutex_;
  absl::Status hung_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StreamTable> streams_;
  std::unique_ptr<EngineLoop> engine_;
  std::unique_ptr<ControlRunner> control_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<SchedulerLink> link_;
};

absl::Status WorkerServer::Impl::Start(const WorkerHooks& hooks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckNoWrongBitsMark(wrong_bits_mark()));
  LOCKSTEP_ASSIGN_OR_RETURN(base_, service::ServiceBase::Create("worker", options_.server));
  metrics_ = std::make_unique<EngineMetrics>(base_->registry());
  if (hooks.hang_patience > absl::ZeroDuration()) hang_patience_ = hooks.hang_patience;
  liveness_.emplace(hang_patience_);
  LOCKSTEP_RETURN_IF_ERROR(rpc::CheckPortIsFree(options_.server.rpc.address));
  LOCKSTEP_ASSIGN_OR_RETURN(tokenizer_, LoadTokenizer(options_.model));
  base_->logger().Info("loading", {{"model", options_.model}, {"backend", options_.backend}});
  const absl::Time begun = base_->clock()->Now();
  LOCKSTEP_ASSIGN_OR_RETURN(model_, Load(options_, hooks, tokenizer_.get()));
  metrics_->ranks.Set(static_cast<double>(options_.tensor_parallel));
  base_->logger().Info("loaded", {{"model", model_.facts.name},
                                  {"backend", model_.fingerprint.backend},
                                  {"ranks", options_.tensor_parallel},
                                  {"kv_blocks", model_.executor->kv_block_count()},
                                  {"load_seconds", base_->clock()->Now() - begun}});
  fence_ = std::make_unique<LeaseFence>(options_.server.cluster_id,
                                        base::WorkerId(options_.worker_id), base_->clock());
  streams_ = std::make_unique<StreamTable>(fence_.get(), &report_, model_.weights_digest.ToString(),
                                           base_->logger());
  LOCKSTEP_ASSIGN_OR_RETURN(
      engine_, EngineLoop::Create(
                   {.split_kv_size = options_.split_kv_size,
                    .chunk_tokens = options_.chunk_tokens,
                    .sequences_max = options_.sequences_max,
                    .context_tokens_max = model_.facts.context_tokens_max,
                    .waiting_max = options_.waiting_max,
                    .vocabulary = model_.facts.vocabulary,
                    .prefix_cache = options_.prefix_cache,
                    .shadow_every_steps = options_.shadow_every_steps,
                    .weight_version = base::WeightVersion(options_.weight_version)},
                   {.executor = model_.executor.get(),
                    .tokenizer = tokenizer_,
                    .clock = base_->clock(),
                    .metrics = metrics_.get(),
                    .on_step = [this](StepOutput output) { streams_->Deliver(std::move(output)); },
                    .on_failure =
                        [this](absl::Status status) {
                          base_->logger().Error("engine_failed", {{"error", status}});
                          fence_->Close();
                          // Steps run only for a lease, and a lease comes after the server.
                          server_->health().SetReady(false);
                        }}));
  control_ = std::make_unique<ControlRunner>();
  service_ = std::make_unique<WorkerService>(WorkerParts{.fence = fence_.get(),
                                                         .engine = engine_.get(),
                                                         .streams = streams_.get(),
                                                         .clock = base_->clock()},
                                             control_.get());
  rpc::ServerOptions server =
      base_->ServerOptions({{"/lockstep.v1.WorkerService/Run", {"router"}},
                            {"/lockstep.v1.WorkerService/Control", {"scheduler"}}});
  server.ping_interval_min = kPingIntervalMin;
  LOCKSTEP_ASSIGN_OR_RETURN(server_, rpc::Server::Start(server, {service_.get()}));
  server_->health().SetStarted(true);
  link_ = std::make_unique<SchedulerLink>(
      Registration(),
      SchedulerLink::Deps{
          .stub = v1::SchedulerService::NewStub(rpc::MakeChannel(
              options_.scheduler, service::ChannelOptionsTo("scheduler", options_.server))),
          .fence = fence_.get(),
          .report = &report_,
          .engine = engine_.get(),
          .clock = base_->clock(),
          .logger = base_->logger(),
          .on_lease_lost = [this] { EndThisLife(); },
          .on_registered = [this] { server_->health().SetReady(true); },
          .on_snapshot = [this](const EngineSnapshot& snapshot) { WatchEngine(snapshot); }});
  base_->logger().Info("serving", {{"port", server_->port()}, {"model", model_.facts.name}});
  return absl::OkStatus();
}

v1::RegisterRequest WorkerServer::Impl::Registration() const {
  v1::RegisterRequest request;
  request.set_cluster_id(options_.server.cluster_id);
  request.set_worker_id(options_.worker_id);
  request.set_address(options_.advertise.empty()
                          ? absl::StrCat(HostOf(options_.server.rpc.address), ":", server_->port())
                          : options_.advertise);
  request.set_metrics_address(base_->metrics_address(options_.advertise));
  *request.mutable_fingerprint() = MakeFingerprint(model_.fingerprint, tokenizer_.get());
  v1::WorkerCapacity* capacity = request.mutable_capacity();
  capacity->set_kv_blocks(model_.executor->kv_block_count());
  capacity->set_kv_block_tokens(model_.executor->kv_block_tokens());
  capacity->set_sequences_max(options_.sequences_max);
  capacity->set_context_tokens_max(model_.facts.context_tokens_max);
  capacity->set_chunk_tokens(options_.chunk_tokens);
  request.set_weight_version(options_.weight_version);
  request.set_weights_digest(model_.weights_digest.ToString());
  v1::ModelFacts* facts = request.mutable_model();
  facts->set_name(model_.facts.name);
  facts->set_vocabulary(model_.facts.vocabulary);
  facts->mutable_eos_ids()->Add(model_.facts.eos_ids.begin(), model_.facts.eos_ids.end());
  facts->set_generation_config_json(model_.facts.generation_config_json);
  return request;
}

void WorkerServer::Impl::EndThisLife() {
  server_->health().SetReady(false);
  streams_->CloseAll(absl::FailedPreconditionError("the worker lost its lease"));
  engine_->AbortAll();
}

void WorkerServer::Impl::WatchEngine(const EngineSnapshot& snapshot) {
  if (liveness_->Observe(snapshot.progress, snapshot.idle, base_->clock()->Now())) return;
  GiveUpEngine(absl::DeadlineExceededError(
      absl::StrCat("the engine has made no progress for ", absl::FormatDuration(hang_patience_))));
}

void WorkerServer::Impl::GiveUpEngine(absl::Status why) {
  {
    base::MutexLock lock(&mutex_);
    if (!hung_.ok()) return;
    // Before health() tells: the process may end at once then.
    base_->logger().Error("engine_hung", {{"error", why}});
    hung_ = why;
  }
  fence_->Close();
  server_->health().SetReady(false);
  server_->health().SetLive(false);
  streams_->CloseAll(why);
}

absl::Status WorkerServer::Impl::health() const {
  LOCKSTEP_RETURN_IF_ERROR(engine_->health());
  base::MutexLock lock(&mutex_);
  return hung_;
}

void WorkerServer::Impl::LeaveFailed() {
  const absl::Status why = health();
  // Of the audit, and of ranks that differ.
  const bool wrong_bits = absl::IsDataLoss(why);
  if (wrong_bits) {
    // Before the scheduler is told, who may be away.
    const absl::Status marked = LeaveWrongBitsMark(wrong_bits_mark(), why);
    if (!marked.ok()) base_->logger().Error("wrong_bits_not_marked", {{"error", marked}});
  }
  link_->LeaveAtOnce(wrong_bits ? v1::WORKER_FAULT_BITS : v1::WORKER_FAULT_ENGINE,
                     kFarewellTimeout);
}

bool WorkerServer::Impl::WaitIdle(absl::Time until) {
  base::Mutex mutex;
  base::CondVar pause;
  while (!engine_->Snapshot().held.empty()) {
    if (base_->clock()->Now() >= until || !health().ok()) return false;
    base::MutexLock lock(&mutex);
    pause.WaitFor(&mutex, kDrainPoll);
  }
  return true;
}

void WorkerServer::Impl::Drain(absl::Time deadline) {
  server_->health().BeginDrain();
  const absl::StatusOr<bool> others = link_->AnnounceDrain(kLeaveTimeout);
  base_->logger().Info("draining", {{"others_available", others.ok() && *others}});
  const auto step_patience = [this] { return base_->clock()->Now() + kLastStepPatience; };
  const absl::Time finish =
      std::min(deadline, base_->clock()->Now() + options_.server.drain_finish);
  const absl::Time last_step = deadline - kLastStepPatience;
  if (!WaitIdle(finish)) {
    // Without another worker, to go on is all that can be done for what runs.
    if (others.ok() && *others && health().ok()) {
      engine_->HandOffAll(std::max(last_step, step_patience())).IgnoreError();
    }
    WaitIdle(last_step);
  }
  // Whatever waits for the engine after this has to know that it does not hang.
  if (health().ok() && !engine_->AwaitStepEnd(std::max(deadline, step_patience())).ok()) {
    GiveUpEngine(
        absl::DeadlineExceededError("the engine did not end its step until the drain had to end"));
  }
  if (!health().ok()) return;  // LeaveFailed is for the rest, and streams break with the process.
  link_->LeaveForGood(kLeaveTimeout);
  server_->Drain(deadline);
}

WorkerServer::Impl::~Impl() {
  link_.reset();
  control_.reset();
  if (server_ != nullptr) server_->Shutdown();
  // The engine's hook uses the streams, so its thread ends first.
  engine_.reset();
}

WorkerServer::WorkerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerServer::~WorkerServer() = default;

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(WorkerOptions options,
                                                                  const WorkerHooks& hooks) {
  auto impl = std::make_unique<Impl>(std::move(options));
  LOCKSTEP_RETURN_IF_ERROR(impl->Start(hooks));
  return std::unique_ptr<WorkerServer>(new WorkerServer(std::move(impl)));
}

int WorkerServer::port() const { return impl_->port(); }
void WorkerServer::Drain(absl::Time deadline) { impl_->Drain(deadline); }
absl::Status WorkerServer::health() const { return impl_->health(); }
void WorkerServer::LeaveFailed() { impl_->LeaveFailed(); }

}  // namespace lockstep::worker
