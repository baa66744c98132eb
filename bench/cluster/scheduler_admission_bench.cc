#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "common/base/clock.h"
#include "services/scheduler/scheduler_core.h"

// How many admissions a second the scheduler's core decides, alone on one thread, with a full
// cluster around it: every admission grants a ticket and an older one comes back, and heartbeats
// arrive at the rate they would in real time.
namespace lockstep::scheduler {
namespace {

class NoStore final : public StateStore {
 public:
  std::optional<PersistentState> Load() const override { return std::nullopt; }
  absl::Status Save(const PersistentState&) override { return absl::OkStatus(); }
};

class Cluster {
 public:
  Cluster(int workers, int64_t sequences) {
    core_ = *SchedulerCore::Create({}, &clock_, &store_);
    const int64_t each = sequences / workers;
    kv_blocks_ = each * 60;
    for (int i = 0; i < workers; ++i) {
      names_.push_back({base::WorkerId(absl::StrCat("worker-", i)), base::Incarnation(i + 1)});
      (void)core_->Register({.name = names_.back(),
                             .address = absl::StrCat("host-", i, ":7100"),
                             .capacity = {.kv_blocks = kv_blocks_,
                                          .kv_block_tokens = 16,
                                          .sequences_max = 2 * each,
                                          .context_tokens_max = 8192,
                                          .chunk_tokens = 512},
                             .split_kv_size = 256,
                             .contract = {.fields = {{"backend", "cpu"}}}});
    }
    held_.resize(workers);
    for (int64_t i = 0; i < sequences; ++i) Admit();
    for (int i = 0; i < workers; ++i) Heartbeat(i);
  }

  // Asks for a ticket for a sample of a group of 8, with 4 candidates.
  void Admit() {
    const uint64_t number = ++handles_;
    AdmissionRequest request{.stream = RouterStream(1),
                             .handle = number,
                             .sequence = base::SequenceId(absl::StrCat("request-", number, "/0")),
                             .request = base::RequestId(absl::StrCat("request-", number)),
                             .group = absl::StrCat("request-", number / 8),
                             .demand = {.length = 300,
                                        .prompt_tokens = 300,
                                        .new_tokens_max = 1024,
                                        .prefix_hash = number / 8},
                             .entry_epoch = base::Epoch(1),
                             .deadline = clock_.Now() + absl::Seconds(600)};
    for (int i = 0; i < 4; ++i) {
      request.candidates.push_back(names_[(number / 8 + i * 7) % names_.size()]);
    }
    core_->Admit({std::move(request)});
    for (const AdmitOutcome& outcome : core_->TakeDecisions().outcomes) {
      if (!outcome.ticket.ok()) continue;
      tickets_.push_back(*outcome.ticket);
    }
  }
  void ReleaseOldest() {
    core_->Release({tickets_.front().id});
    tickets_.pop_front();
  }
  void Heartbeat(int worker) {
    WorkerReport report{
        .name = names_[worker],
        .steps = ++steps_,
        .kv_blocks_free = kv_blocks_ - 20 * static_cast<int64_t>(held_[worker].size())};
    for (const HeldTicket& held : held_[worker]) report.held.push_back(held);
    (void)core_->Heartbeat(report);
  }
  // Sorts what runs to its workers, as their next reports will show it.
  void RefreshHeld() {
    for (std::vector<HeldTicket>& held : held_) held.clear();
    for (const Ticket& ticket : tickets_) {
      held_[ticket.worker.incarnation.value() - 1].push_back(
          {.ticket = ticket.id, .kv_blocks = 20});
    }
  }
  void Pass(absl::Duration duration) {
    clock_.Advance(duration);
    core_->Tick();
  }
  size_t running() const { return tickets_.size(); }
  int workers() const { return static_cast<int>(names_.size()); }

 private:
  base::SimClock clock_;
  NoStore store_;
  std::unique_ptr<SchedulerCore> core_;
  std::vector<WorkerName> names_;
  std::deque<Ticket> tickets_;
  std::vector<std::vector<HeldTicket>> held_;
  int64_t kv_blocks_ = 0;  // Of each worker.
  uint64_t handles_ = 0;
  uint64_t steps_ = 0;
};

// Admissions and releases alone.
void BM_AdmitAndRelease(benchmark::State& state) {
  Cluster cluster(static_cast<int>(state.range(0)), state.range(1));
  for (auto unused : state) {
    cluster.Admit();
    cluster.ReleaseOldest();
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["running"] = static_cast<double>(cluster.running());
}
BENCHMARK(BM_AdmitAndRelease)->Args({1, 100})->Args({100, 10000})->Args({1000, 100000});

// One iteration is a tenth of a second at 20,000 admissions a second: 2,000 admissions and
// releases, the heartbeats of a tenth of the workers with all they hold, and two ticks.
void BM_TenthOfASecondAtFullLoad(benchmark::State& state) {
  Cluster cluster(static_cast<int>(state.range(0)), state.range(1));
  int next = 0;
  for (auto unused : state) {
    state.PauseTiming();
    cluster.RefreshHeld();
    state.ResumeTiming();
    for (int i = 0; i < 2000; ++i) {
      cluster.Admit();
      cluster.ReleaseOldest();
    }
    for (int i = 0; i < cluster.workers() / 10; ++i) {
      cluster.Heartbeat(next++ % cluster.workers());
    }
    cluster.Pass(absl::Milliseconds(50));
    cluster.Pass(absl::Milliseconds(50));
  }
  state.SetItemsProcessed(state.iterations() * 2000);
  state.counters["running"] = static_cast<double>(cluster.running());
}
BENCHMARK(BM_TenthOfASecondAtFullLoad)->Args({1000, 100000})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace lockstep::scheduler
