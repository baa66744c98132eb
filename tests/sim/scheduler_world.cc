#include "tests/sim/scheduler_world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep::scheduler::sim {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kStep = absl::Milliseconds(40);
constexpr absl::Duration kHeartbeat = absl::Milliseconds(700);
// Of the ticks, those that bring a router a new snapshot.
constexpr double kSnapshotShare = 0.1;
// After the last fault everything must be over by then.
constexpr absl::Duration kSettle = absl::Seconds(240);

}  // namespace

World::World(WorldOptions options)
    : options_(options),
      random_(options.seed),
      end_of_busy_(clock_.Now() + options.busy),
      checker_(core_options_.queue.ageing) {
  core_options_.advance_tickets = options_.advance_tickets;
  core_ = *SchedulerCore::Create(core_options_, &clock_, &store_);
  for (int i = 0; i < options_.workers; ++i) {
    Worker worker;
    worker.registration = {.name = {.id = base::WorkerId(absl::StrCat("w", i)),
                                    .incarnation = base::Incarnation(++incarnations_)},
                           .address = absl::StrCat("host", i, ":1"),
                           .capacity = {.kv_blocks = 120,
                                        .kv_block_tokens = 16,
                                        .sequences_max = 24,
                                        .context_tokens_max = 1900,
                                        .chunk_tokens = 128},
                           .split_kv_size = 64,
                           .contract = {.fields = {{"backend", "cpu"}}}};
    workers_.push_back(std::move(worker));
    RegisterWorker(i);
    After(kStep * i / 4, [this, i] { StepWorker(i); });
    After(kHeartbeat * i / 4, [this, i] { SendHeartbeat(i); });
  }
  routers_.resize(options_.routers);
  for (int i = 0; i < options_.routers; ++i) OpenStream(i);
  After(kTick, [this] { Tick(); });
  After(absl::Milliseconds(100), [this] { NewGroup(); });
  if (options_.faults.per_second > 0) After(absl::Seconds(1), [this] { Fault(); });
}

void World::After(absl::Duration delay, std::function<void()> run) {
  events_.push({clock_.Now() + delay, ++events_made_, std::move(run)});
}

absl::Duration World::Delay() { return absl::Microseconds(Uniform(200, 20000)); }
bool World::Chance(double share) { return std::uniform_real_distribution<>()(random_) < share; }
int64_t World::Uniform(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
}

void World::Run() {
  const absl::Time end = end_of_busy_ + kSettle;
  while (!events_.empty() && events_.top().time < end && problems().empty() && !over_) {
    const Event event = events_.top();
    events_.pop();
    clock_.Advance(event.time - clock_.Now());
    event.run();
  }
  if (problems().empty()) CheckEnd();
}

void World::Tick() {
  const bool was_recovering = core_->state().recovering;
  if (was_recovering) {
    // The checker must know before it sees the grants.
    core_->Tick();
    if (!core_->state().recovering) checker_.OnRecovered(clock_.Now());
    CarryOut(core_->state().recovering);
  } else {
    Ask([](SchedulerCore& core) { return core.Tick(), 0; });
  }
  for (Router& router : routers_) {
    if (clock_.Now() - absl::UnixEpoch() < absl::Seconds(1) || Chance(kSnapshotShare)) {
      router.view = core_->Workers();
    }
  }
  over_ = Over();
  After(kTick, [this] { Tick(); });
}

void World::CarryOut(bool was_recovering) {
  const Decisions decisions = core_->TakeDecisions();
  const bool granting = !was_recovering && !core_->state().pause.has_value();
  // A worker whose lease ended in this event got nothing in the same event before.
  for (const LostWorker& lost : decisions.lost) checker_.OnLost(lost.name);
  for (const AdmitOutcome& outcome : decisions.outcomes) {
    checker_.OnOutcome(outcome, granting, clock_.Now());
    if (outcome.ticket.ok() && outcome.waited >= core_options_.queue.ageing) ++tally_.aged_waits;
    OnOutcome(outcome);
  }
  for (const AdvanceGrant& grant : decisions.advance) {
    checker_.OnAdvance(grant, granting);
    OnAdvance(grant);
  }
  if (decisions.epoch_changed) OnEpoch();
  for (const LostWorker& lost : decisions.lost) {
    ++tally_.lost;
    for (size_t i = 0; i < routers_.size(); ++i) OnLost(static_cast<int>(i), lost.name);
  }
  for (const ControlCall& call : decisions.calls) OnControl(call);
  for (const OperationResult& result : decisions.finished) {
    if (operations_.erase(result.operation) == 0) {
      checker_.Problem("an operation finished twice, or was never begun");
    }
    ++tally_.operations_finished;
  }
}

void World::Fault() {
  if (!busy()) return;
  const Faults& faults = options_.faults;
  const int worker = static_cast<int>(Uniform(0, options_.workers - 1));
  switch (Uniform(0, 5)) {
    case 0:
      if (!faults.worker_kill || !workers_[worker].up) break;
      ++tally_.kills;
      workers_[worker].up = false;
      BreakStreams(workers_[worker].registration.name);
      After(absl::Milliseconds(Uniform(100, 8000)), [this, worker] {
        NewLife(workers_[worker]);
        workers_[worker].up = true;
        RegisterWorker(worker);
      });
      break;
    case 1:
      if (!faults.worker_stall) break;
      ++tally_.stalls;
      workers_[worker].stalled_until = clock_.Now() + absl::Milliseconds(Uniform(100, 9000));
      break;
    case 2:
      if (!faults.worker_drain || !workers_[worker].registered) break;
      {
        const WorkerName name = workers_[worker].registration.name;
        const auto others =
            Ask([&](SchedulerCore& core) { return core.Drain(name, /*force=*/false); });
        if (!others.ok() || !*others) break;
        ++tally_.drains;
        checker_.OnDraining(name);
        workers_[worker].draining = true;
      }
      break;
    case 3:
      if (faults.scheduler_restart) RestartScheduler();
      break;
    case 4:
      if (faults.router_restart) RestartRouter(static_cast<int>(Uniform(0, options_.routers - 1)));
      break;
    default:
      if (faults.operations) Operate();
  }
  After(absl::Seconds(1 / faults.per_second), [this] { Fault(); });
}

void World::RestartScheduler() {
  ++tally_.restarts;
  ++generation_;
  operations_.clear();
  checker_.OnRestart();
  core_ = *SchedulerCore::Create(core_options_, &clock_, &store_);
  for (size_t i = 0; i < routers_.size(); ++i) OpenStream(static_cast<int>(i));
}

void World::Begin(const std::function<absl::StatusOr<OperationId>(SchedulerCore&)>& operation) {
  const bool recovering = core_->state().recovering;
  const absl::StatusOr<OperationId> id = operation(*core_);
  if (!id.ok()) return checker_.Problem(std::string(id.status().message()));
  // The operation may have finished within the call: its name is known before that is looked at.
  operations_.insert(*id);
  CarryOut(recovering);
}

void World::Operate() {
  switch (Uniform(0, 3)) {
    case 0:
      return Begin([](SchedulerCore& core) { return core.AbortAll(); });
    case 1: {
      std::vector<base::RequestId> ids;
      for (int i = 0; i < 5 && !sequences_.empty(); ++i) {
        ids.emplace_back(absl::StrCat(Uniform(0, static_cast<int64_t>(sequences_.size()) - 1)));
      }
      return Begin([&](SchedulerCore& core) { return core.Abort(ids); });
    }
    case 2: {
      const auto mode = static_cast<PauseMode>(Uniform(0, 2));
      Begin([&](SchedulerCore& core) { return core.Pause(mode); });
      return After(absl::Milliseconds(Uniform(100, 6000)),
                   [this] { Begin([](SchedulerCore& core) { return core.Resume(); }); });
    }
    default:
      Begin([](SchedulerCore& core) -> absl::StatusOr<OperationId> {
        return core.FlushCache(std::nullopt);
      });
  }
}

bool World::Over() const {
  const CoreState state = core_->state();
  return !busy() && state.running_sequences == 0 && state.queued_sequences == 0 &&
         !state.pause.has_value() && operations_.empty() &&
         std::all_of(sequences_.begin(), sequences_.end(),
                     [](const Sequence& sequence) { return sequence.phase == Phase::kOver; });
}

void World::CheckEnd() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].phase != Phase::kOver || sequences_[i].ends != 1) {
      checker_.Problem(absl::StrCat("sequence ", i, " ended ", sequences_[i].ends, " times"));
    }
  }
  const CoreState state = core_->state();
  if (state.queued_sequences != 0 || checker_.waiting() != 0) {
    checker_.Problem(absl::StrCat(state.queued_sequences, " requests are left in the queue"));
  }
  if (state.running_sequences != 0 || core_->accounting().blocks_charged() != 0) {
    checker_.Problem(absl::StrCat(state.running_sequences, " tickets and ",
                                  core_->accounting().blocks_charged(), " blocks are left"));
  }
  if (!operations_.empty()) checker_.Problem("an operation never finished");
  tally_.violations += core_->counters().plan_violations;
}

}  // namespace lockstep::scheduler::sim
