#include "services/worker/engine/engine_loop.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/retry_advice.h"
#include "common/base/status_macros.h"
#include "services/worker/engine/engine_core.h"
#include "services/worker/engine/engine_metrics.h"

namespace lockstep::worker {
namespace {

// How old the block counts of a snapshot may be: it costs a walk over all sequences.
constexpr absl::Duration kKvCountsAge = absl::Milliseconds(50);
// Waits for far deadlines are cut: the end of a wait of centuries overflows the system's clock.
constexpr absl::Duration kIdleWaitMax = absl::Hours(1);

}  // namespace

// The inbox is bounded by what lives: at most waiting_max starts, one credit and one cancel entry
// a live sequence, and one task a blocked caller. So no command is ever refused for want of room,
// except a start.
class EngineLoop::Impl {
 public:
  static absl::StatusOr<std::unique_ptr<Impl>> Create(EngineOptions options, EngineDeps deps);
  ~Impl();

  absl::Status Start(SequenceStart start);
  void Notify() { changed_.NotifyOne(); }
  void Cancel(base::TicketId ticket);
  void AddCredit(base::TicketId ticket, int64_t tokens);
  void RefuseStarts();
  void AbortAll();
  // Runs `work` between two steps and returns when it and the delivery of its results are done, or
  // at `deadline`.
  absl::Status RunOnLoop(std::function<void(EngineCore&)> work, absl::Time deadline);
  // The same for work with a result.
  template <typename Result>
  absl::StatusOr<Result> AskLoop(std::function<Result(EngineCore&)> work, absl::Time deadline);
  EngineSnapshot Snapshot() const;
  absl::Status health() const;

 private:
  struct Task {
    std::function<void(EngineCore&)> work;
    bool done = false;
  };
  struct Inbox {
    std::vector<std::unique_ptr<Sequence>> starts;
    absl::flat_hash_map<base::TicketId, int64_t> credits;
    absl::flat_hash_set<base::TicketId> cancels;
    bool abort_all = false;
    std::vector<std::shared_ptr<Task>> tasks;  // The caller may give up while one runs.
    bool empty() const {
      return starts.empty() && credits.empty() && cancels.empty() && !abort_all && tasks.empty();
    }
  };
  struct Live {
    base::SequenceId sequence;
    int64_t attempt = 0;
  };

  explicit Impl(const EngineOptions& options, EngineDeps deps)
      : options_(options), deps_(std::move(deps)) {}

  absl::Status CheckRoom(base::TicketId ticket) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  // Waits for commands, or for the next deadline when there is nothing to run. False: stop.
  bool TakeCommands(bool may_wait, Inbox* inbox);
  void Apply(Inbox* inbox);
  void PublishState();
  void OnStep(StepOutput output);
  void OnFailure(const absl::Status& status);

  const EngineOptions options_;
  const EngineDeps deps_;
  std::unique_ptr<EngineCore> core_;  // The thread's own, but for MakeSequence.

  mutable base::Mutex mutex_;
  base::CondVar changed_;    // The inbox or stop_.
  base::CondVar task_done_;  // Any Task::done.
  Inbox inbox_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool refuses_starts_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Started and not yet ended by a delivered output.
  absl::flat_hash_map<base::TicketId, Live> live_ ABSL_GUARDED_BY(mutex_);
  int64_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // In the core.
  EngineSnapshot last_ ABSL_GUARDED_BY(mutex_);  // Without what live_ knows.
  absl::flat_hash_map<base::TicketId, int64_t> kv_blocks_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  absl::Time kv_counts_time_ = absl::InfinitePast();  // The thread's own.
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<EngineLoop::Impl>> EngineLoop::Impl::Create(EngineOptions options,
                                                                           EngineDeps deps) {
  std::unique_ptr<Impl> impl(new Impl(options, deps));
  deps.on_step = [raw = impl.get()](StepOutput output) { raw->OnStep(std::move(output)); };
  deps.on_failure = [raw = impl.get()](const absl::Status& status) { raw->OnFailure(status); };
  LOCKSTEP_ASSIGN_OR_RETURN(impl->core_, EngineCore::Create(std::move(options), std::move(deps)));
  impl->PublishState();
  impl->thread_ = std::thread([raw = impl.get()] { raw->Run(); });
  return impl;
}

EngineLoop::Impl::~Impl() {
  {
    base::MutexLock lock(&mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status EngineLoop::Impl::CheckRoom(base::TicketId ticket) const {
  LOCKSTEP_RETURN_IF_ERROR(health_);
  if (refuses_starts_) return absl::FailedPreconditionError("this worker hands its sequences off");
  if (live_.contains(ticket)) {
    return absl::AlreadyExistsError(absl::StrCat("ticket ", ticket.value(), " runs already"));
  }
  const int64_t waiting = waiting_ + static_cast<int64_t>(inbox_.starts.size());
  if (waiting < options_.waiting_max) return absl::OkStatus();
  return base::WithRetryAdvice(
      absl::ResourceExhaustedError(absl::StrCat(waiting, " sequences wait already")),
      {.retryable = true, .delay = absl::Seconds(1)});
}

absl::Status EngineLoop::Impl::Start(SequenceStart start) {
  const base::TicketId ticket = start.ticket;
  const Live live = {.sequence = start.sequence, .attempt = start.attempt};
  // Checked and prepared on the caller's thread, so that a step does not wait for it.
  absl::StatusOr<std::unique_ptr<Sequence>> sequence = core_->MakeSequence(std::move(start));
  absl::Status status = sequence.status();
  if (status.ok()) {
    base::MutexLock lock(&mutex_);
    status = CheckRoom(ticket);
    if (status.ok()) {
      live_.emplace(ticket, live);
      inbox_.starts.push_back(*std::move(sequence));
    }
  }
  if (!status.ok()) deps_.metrics->sequences_refused.Increment();
  return status;
}

void EngineLoop::Impl::Cancel(base::TicketId ticket) {
  base::MutexLock lock(&mutex_);
  if (!live_.contains(ticket)) return;
  inbox_.cancels.insert(ticket);
  changed_.NotifyOne();
}

void EngineLoop::Impl::AddCredit(base::TicketId ticket, int64_t tokens) {
  base::MutexLock lock(&mutex_);
  if (!live_.contains(ticket)) return;
  inbox_.credits[ticket] += tokens;
  changed_.NotifyOne();
}

void EngineLoop::Impl::RefuseStarts() {
  base::MutexLock lock(&mutex_);
  refuses_starts_ = true;
}

void EngineLoop::Impl::AbortAll() {
  base::MutexLock lock(&mutex_);
  inbox_.abort_all = ending_ = true;
  changed_.NotifyOne();
}

absl::Status EngineLoop::Impl::RunOnLoop(std::function<void(EngineCore&)> work,
                                         absl::Time deadline) {
  const auto task = std::make_shared<Task>(std::move(work));
  base::MutexLock lock(&mutex_);
  inbox_.tasks.push_back(task);
  changed_.NotifyOne();
  while (!task->done) {
    const absl::Duration left = deadline - deps_.clock->Now();
    if (left <= absl::ZeroDuration()) {
      std::erase(inbox_.tasks, task);
      return absl::DeadlineExceededError("the engine's step did not end in time");
    }
    task_done_.WaitFor(&mutex_, left);
  }
  return absl::OkStatus();
}

template <typename Result>
absl::StatusOr<Result> EngineLoop::Impl::AskLoop(std::function<Result(EngineCore&)> work,
                                                 absl::Time deadline) {
  const auto result = std::make_shared<Result>();
  LOCKSTEP_RETURN_IF_ERROR(RunOnLoop(
      [result, work = std::move(work)](EngineCore& core) { *result = work(core); }, deadline));
  return std::move(*result);
}

EngineSnapshot EngineLoop::Impl::Snapshot() const {
  base::MutexLock lock(&mutex_);
  EngineSnapshot snapshot = last_;
  snapshot.progress = last_.steps + deps_.executor->progress();
  snapshot.idle = last_.idle && inbox_.empty();
  snapshot.ending = ending_;
  for (const auto& [ticket, live] : live_) {
    const auto blocks = kv_blocks_.find(ticket);
    snapshot.held.push_back({.ticket = ticket,
                             .sequence = live.sequence,
                             .attempt = live.attempt,
                             .kv_blocks = blocks == kv_blocks_.end() ? 0 : blocks->second});
  }
  return snapshot;
}

absl::Status EngineLoop::Impl::health() const {
  base::MutexLock lock(&mutex_);
  return health_.ok() ? deps_.executor->health() : health_;
}

void EngineLoop::Impl::Run() {
  Inbox inbox;
  bool worked = false;
  while (TakeCommands(/*may_wait=*/!worked, &inbox)) {
    Apply(&inbox);
    worked = core_->RunStep();
    PublishState();
  }
}

bool EngineLoop::Impl::TakeCommands(bool may_wait, Inbox* inbox) {
  base::MutexLock lock(&mutex_);
  while (may_wait && !stop_ && inbox_.empty()) {
    const absl::Duration left = core_->next_deadline() - deps_.clock->Now();
    if (left <= absl::ZeroDuration()) break;
    if (left == absl::InfiniteDuration()) {
      changed_.Wait(&mutex_);
    } else {
      changed_.WaitFor(&mutex_, std::min(left, kIdleWaitMax));
    }
  }
  *inbox = std::exchange(inbox_, {});
  // Until the next state is published: a step that hangs must not look idle.
  last_.idle = false;
  waiting_ += static_cast<int64_t>(inbox->starts.size());
  return !stop_;
}

void EngineLoop::Impl::Apply(Inbox* inbox) {
  for (auto& sequence : inbox->starts) core_->Add(std::move(sequence));
  for (const auto& [ticket, tokens] : inbox->credits) core_->AddCredit(ticket, tokens);
  for (const base::TicketId ticket : inbox->cancels) core_->Cancel(ticket);
  // Every sequence entered the cluster before the end of all epochs.
  if (inbox->abort_all) core_->AbortOlderThan(base::Epoch(UINT64_MAX));
  if (inbox->tasks.empty() && !inbox->abort_all) return;
  for (const auto& task : inbox->tasks) task->work(*core_);
  core_->DeliverPending();
  PublishState();
  base::MutexLock lock(&mutex_);
  if (inbox->abort_all) ending_ = inbox_.abort_all;
  for (const auto& task : inbox->tasks) task->done = true;
  task_done_.NotifyAll();
}

void EngineLoop::Impl::PublishState() {
  const absl::Time now = deps_.clock->Now();
  const bool counts_kv = now - kv_counts_time_ >= kKvCountsAge;
  absl::flat_hash_map<base::TicketId, int64_t> kv_blocks;
  EngineSnapshot snapshot = core_->Snapshot(/*with_held=*/counts_kv);
  for (const EngineSnapshot::Held& held : snapshot.held) {
    kv_blocks.emplace(held.ticket, held.kv_blocks);
  }
  snapshot.held.clear();
  base::MutexLock lock(&mutex_);
  last_ = std::move(snapshot);
  waiting_ = core_->waiting_count();
  health_ = core_->health();
  if (!counts_kv) return;
  kv_counts_time_ = now;
  kv_blocks_ = std::move(kv_blocks);
}

void EngineLoop::Impl::OnStep(StepOutput output) {
  {
    base::MutexLock lock(&mutex_);
    for (const SequenceOutput& one : output.outputs) {
      if (one.end.has_value()) live_.erase(one.ticket);
    }
    for (const base::TicketId ticket : output.hand_offs) live_.erase(ticket);
  }
  deps_.on_step(std::move(output));
}

void EngineLoop::Impl::OnFailure(const absl::Status& status) {
  {
    base::MutexLock lock(&mutex_);
    health_ = status;
  }
  if (deps_.on_failure) deps_.on_failure(status);
}

absl::StatusOr<std::unique_ptr<EngineLoop>> EngineLoop::Create(EngineOptions options,
                                                               EngineDeps deps) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl,
                            Impl::Create(std::move(options), std::move(deps)));
  return std::unique_ptr<EngineLoop>(new EngineLoop(std::move(impl)));
}

EngineLoop::EngineLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EngineLoop::~EngineLoop() = default;

std::vector<absl::Status> EngineLoop::Start(std::vector<SequenceStart> starts) {
  std::vector<absl::Status> statuses;
  for (SequenceStart& start : starts) statuses.push_back(impl_->Start(std::move(start)));
  impl_->Notify();
  return statuses;
}

void EngineLoop::Cancel(base::TicketId ticket) { impl_->Cancel(ticket); }

void EngineLoop::AddCredit(base::TicketId ticket, int64_t tokens) {
  impl_->AddCredit(ticket, tokens);
}

void EngineLoop::AbortAll() { impl_->AbortAll(); }

absl::StatusOr<EngineLoop::Aborted> EngineLoop::AbortRequests(std::vector<base::RequestId> requests,
                                                              absl::Time deadline) {
  return impl_->AskLoop<Aborted>(
      [requests = std::move(requests)](EngineCore& core) {
        Aborted aborted;
        aborted.sequences = core.AbortRequests(requests, &aborted.known);
        return aborted;
      },
      deadline);
}

absl::StatusOr<int64_t> EngineLoop::AbortOlderThan(base::Epoch epoch, absl::Time deadline) {
  return impl_->AskLoop<int64_t>([=](EngineCore& core) { return core.AbortOlderThan(epoch); },
                                 deadline);
}

absl::Status EngineLoop::SetHold(bool hold, absl::Time deadline) {
  return impl_->RunOnLoop([=](EngineCore& core) { core.SetHold(hold); }, deadline);
}

absl::StatusOr<int64_t> EngineLoop::FlushCache(std::optional<std::string> cache_namespace,
                                               absl::Time deadline) {
  return impl_->AskLoop<int64_t>([cache_namespace = std::move(cache_namespace)](
                                     EngineCore& core) { return core.FlushCache(cache_namespace); },
                                 deadline);
}

absl::Status EngineLoop::HandOffAll(absl::Time deadline) {
  impl_->RefuseStarts();
  return impl_->RunOnLoop([](EngineCore& core) { core.HandOffAll(); }, deadline);
}

absl::Status EngineLoop::AwaitStepEnd(absl::Time deadline) {
  return impl_->RunOnLoop([](EngineCore&) {}, deadline);
}

EngineSnapshot EngineLoop::Snapshot() const { return impl_->Snapshot(); }
absl::Status EngineLoop::health() const { return impl_->health(); }

}  // namespace lockstep::worker
