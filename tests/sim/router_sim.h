#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/registry.h"
#include "services/router/prefix_affine_policy.h"
#include "services/router/router_core.h"
#include "tests/support/capture_log.h"

namespace lockstep::router {

// Faults of one history, as probabilities of each chance that an event has.
struct SimFaults {
  double worker_killed = 0;       // A second, a worker: its stream breaks, its lease ends later.
  double worker_stalled = 0;      // A second, a worker: silent for 1.5 leases, then a zombie.
  double stream_broken = 0;       // A second, a worker: the connection alone.
  double worker_drained = 0;      // A second, a worker: hands everything off.
  double scheduler_lost = 0;      // A second.
  double frame_repeated = 0;      // A frame: comes twice.
  double frame_dropped = 0;       // A frame without an end.
  double position_repeated = 0;   // A delta: starts before what was sent.
  double start_refused = 0;       // A start.
  double sequence_cancelled = 0;  // A sequence, at a random time.
  double gateway_lost = 0;        // A second, a gateway: opens anew later with new sequences.
};

// A router's core between simulated gateways, scheduler, workers and network, in one thread and in
// simulated time. One seed is one history. What must hold all the time is checked all the time;
// problems() is empty when it held.
class RouterSim {
 public:
  struct Options {
    uint64_t seed = 0;
    int workers = 3;
    int sequences = 60;
    int64_t new_tokens_max = 40;
    SimFaults faults;
    int64_t poison_limit = 1000000;  // Random deaths prove nothing against a sequence.
  };
  explicit RouterSim(Options options);

  // Until every sequence has ended, then a quiet time.
  void Run();

  const std::vector<std::string>& problems() const { return problems_; }
  RouterMetrics& metrics() { return metrics_; }
  int completed() const { return completed_; }

 private:
  struct Sample {
    GatewayId gateway;
    std::shared_ptr<SequenceSpec> spec;
    std::vector<uint32_t> expected;  // The quiet run.
    int64_t received = 0;
    int64_t prompt_next = 0;
    bool given_up = false;  // Cancelled, or its gateway is gone.
    bool ended = false;
  };
  struct Attempt {
    WorkerStart start;
    std::vector<uint32_t> outputs;
    int64_t next_output = 0;
    int64_t next_prompt = 0;
    int64_t credit = 0;
  };
  struct Worker {
    WorkerKey key;
    bool alive = true;
    bool stalled = false;
    bool draining = false;
    absl::Time last_heartbeat;
    StreamId stream;
    absl::Time arrival;  // Of the newest message on its connection: order is kept.
    std::map<base::TicketId, Attempt> attempts;
    std::vector<WorkerFrame> withheld;  // What a stalled worker would have sent.
  };
  using Action = std::function<void()>;

  bool Chance(double probability);
  absl::Duration Latency();
  void At(absl::Time time, Action action);
  void Problem(const std::string& what);

  void OpenSome();
  void Second();
  void Step(size_t worker);
  void SendFrame(Worker* worker, WorkerFrame frame);
  bool Advance(Attempt* attempt, SequenceDelta* delta);
  void KillWorker(Worker* worker, bool break_stream);
  void Restart(size_t worker);
  void Snapshot();
  void GrantQueued();
  void GrantAhead(const Worker& worker);

  void Dispatch();
  void Deliver(const GatewayDelta& item);
  void ToWorker(const WorkerBatch& batch);
  void Apply(const Action& event);

  const Options options_;
  std::mt19937_64 random_;
  base::SimClock clock_;
  metrics::Registry registry_;
  RouterMetrics metrics_;
  log::CaptureSink sink_;
  PrefixAffinePolicy policy_;
  RouterCore core_;

  struct Event {
    absl::Time time;
    uint64_t order;
    std::shared_ptr<Action> action;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  std::priority_queue<Event> events_;
  uint64_t last_order_ = 0;

  std::vector<Worker> workers_;
  uint64_t last_incarnation_ = 0;
  bool scheduler_up_ = true;
  uint64_t scheduler_stream_ = 1;
  absl::Time to_router_;  // Arrival of the newest message from the scheduler.
  std::vector<AdmitRequest> queue_;
  uint64_t last_ticket_ = 0;
  std::map<base::TicketId, int> received_tickets_;  // -> times released.
  std::map<base::TicketId, WorkerKey> reserved_;
  std::map<base::TicketId, WorkerKey> granted_ahead_;

  std::vector<uint64_t> gateways_;
  uint64_t last_gateway_ = 0;
  std::map<std::pair<GatewayId, uint64_t>, Sample> samples_;
  int opened_ = 0;
  int completed_ = 0;
  std::vector<std::string> problems_;
};

}  // namespace lockstep::router
