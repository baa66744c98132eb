#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "services/scheduler/scheduler_core.h"
#include "tests/sim/scheduler_checker.h"

// A cluster around the real scheduler core, in one thread: simulated workers, routers, network and
// time. One seed gives one history.
namespace lockstep::scheduler::sim {

struct Faults {
  double heartbeat_loss = 0;       // Share of heartbeats that never arrive.
  double heartbeat_duplicate = 0;  // Share that arrives a second time, late.
  double per_second = 0;           // Faults and operations below, together.
  bool worker_kill = false;
  bool worker_stall = false;  // Up to three leases.
  bool worker_drain = false;
  bool scheduler_restart = false;
  bool router_restart = false;
  bool operations = false;  // Abort, pause, resume, flush.
  double cheat = 0;         // Share of cuts reported where none is allowed.
};

struct WorldOptions {
  uint64_t seed = 0;
  int workers = 4;
  int routers = 2;
  int sequences = 200;
  int64_t advance_tickets = 8;
  absl::Duration busy = absl::Seconds(30);  // Faults and new sequences come until then.
  Faults faults;
};

// Kept in memory over restarts of the scheduler.
class SimStore final : public StateStore {
 public:
  std::optional<PersistentState> Load() const override { return state_; }
  absl::Status Save(const PersistentState& state) override {
    state_ = state;
    return absl::OkStatus();
  }

 private:
  std::optional<PersistentState> state_;
};

class World {
 public:
  explicit World(WorldOptions options);

  // Runs the history to its end: all sequences over, all reservations back.
  void Run();
  // What went wrong, empty if nothing.
  const std::vector<std::string>& problems() const { return checker_.problems(); }

  // What did occur, so that a test can ask for it.
  struct Tally {
    int64_t grants = 0, resumptions = 0, lost = 0, restarts = 0, aborted = 0;
    int64_t aged_waits = 0;  // Grants that had to wait for the ageing.
    int64_t ahead = 0;       // Sequences started with advance tickets.
    int64_t kills = 0, stalls = 0, drains = 0, operations_finished = 0, violations = 0;
  };
  const Tally& tally() const { return tally_; }

 private:
  struct Running {
    Ticket ticket;
    int sequence = 0;
    base::Epoch entry_epoch;
    int64_t length = 0;
    int64_t prefilled = 0;
    int64_t steps_left = 0;
    int64_t kv_blocks = 0;
  };
  struct Worker {
    WorkerRegistration registration;
    bool up = true;
    bool registered = false;
    bool hold = false;
    bool draining = false;
    absl::Time stalled_until = absl::InfinitePast();
    absl::Time last_heard = absl::InfinitePast();
    base::Epoch known_epoch;
    uint64_t known_office = 0;  // Epoch of the scheduler.
    absl::Time commands;        // Last delivery: they keep their order.
    uint64_t steps = 0;
    std::map<base::TicketId, Running> running;
    std::vector<Cut> cuts;
    std::vector<base::TicketId> ended;
  };
  enum class Phase { kIdle, kAdmitting, kRunning, kOver };
  struct Sequence {
    int router = 0;
    std::string group;
    Demand demand;
    base::Epoch entry_epoch;
    Phase phase = Phase::kIdle;
    int64_t attempt = 0;
    uint64_t handle = 0;
    std::optional<Ticket> ticket;
    absl::Time deadline;
    int ends = 0;
  };
  struct Router {
    RouterStream stream;
    uint64_t handles = 0;
    std::map<uint64_t, int> by_handle;
    std::vector<WorkerView> view;
    std::vector<AdvanceGrant> stock;
    absl::Time to_scheduler, from_scheduler;  // Last deliveries: a stream keeps its order.
  };
  struct Event {
    absl::Time time;
    uint64_t number = 0;
    std::function<void()> run;
    bool operator>(const Event& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };

  void After(absl::Duration delay, std::function<void()> run);
  absl::Duration Delay();
  bool Chance(double share);
  int64_t Uniform(int64_t low, int64_t high);
  bool busy() const { return clock_.Now() < end_of_busy_; }

  // Runs `call` on the core and carries out what it decided.
  template <typename F>
  auto Ask(F call) {
    const bool recovering = core_->state().recovering;
    auto answer = call(*core_);
    CarryOut(recovering);
    return answer;
  }
  void CarryOut(bool was_recovering);
  void Tick();

  // Routers (scheduler_world_routers.cc).
  void OpenStream(int router);
  void NewGroup();
  void Admit(int sequence);
  void ToScheduler(int router, std::function<void(SchedulerCore&)> command);
  bool StartAhead(int sequence);
  void OnAdvance(const AdvanceGrant& grant);
  void OnEpoch();
  void OnOutcome(const AdmitOutcome& outcome);
  void OnLost(int router, const WorkerName& name);
  void MoveSequences(int router, const WorkerName& name);
  void Release(int router, base::TicketId ticket);
  void EndSequence(int sequence);
  void Readmit(int sequence, absl::Duration delay);
  void RestartRouter(int router);

  // Workers (scheduler_world_workers.cc).
  void StartOnWorker(int worker, const Ticket& ticket, int sequence);
  void StepWorker(int worker);
  void PlaceBlocks(Worker& worker);
  void Finish(Worker& worker, base::TicketId ticket, bool aborted);
  void RegisterWorker(int worker);
  void SendHeartbeat(int worker);
  void OnHeartbeatAnswer(int worker, base::Incarnation incarnation, const absl::Status& status,
                         size_t cuts, size_t ended);
  void NewLife(Worker& worker);
  void BreakStreams(const WorkerName& name);
  void OnControl(const ControlCall& call);
  int WorkerOf(const WorkerName& name) const;

  // Faults.
  void Fault();
  void RestartScheduler();
  void Operate();
  void Begin(const std::function<absl::StatusOr<OperationId>(SchedulerCore&)>& operation);
  bool Over() const;
  void CheckEnd();

  const WorldOptions options_;
  SchedulerCore::Options core_options_;
  std::mt19937_64 random_;
  base::SimClock clock_;
  absl::Time end_of_busy_;
  SimStore store_;
  std::unique_ptr<SchedulerCore> core_;
  uint64_t generation_ = 0;  // Of the scheduler's process.
  uint64_t events_made_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Worker> workers_;
  std::vector<Router> routers_;
  std::vector<Sequence> sequences_;
  uint64_t streams_ = 0;
  uint64_t incarnations_ = 0;
  std::set<OperationId> operations_;
  Checker checker_;
  Tally tally_;
  bool over_ = false;
};

}  // namespace lockstep::scheduler::sim
