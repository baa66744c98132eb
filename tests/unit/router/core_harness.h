#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/packed_array.h"
#include "common/metrics/registry.h"
#include "services/router/prefix_affine_policy.h"
#include "services/router/router_core.h"
#include "tests/support/capture_log.h"

namespace lockstep::router {

inline WorkerKey Key(const std::string& id, uint64_t incarnation = 1) {
  return {base::WorkerId(id), base::Incarnation(incarnation)};
}

inline WorkerState State(const std::string& id, uint64_t incarnation = 1) {
  return {.worker = Key(id, incarnation), .address = id + ":1"};
}

// Any stable bits: the logprob of the token at a position.
inline std::string PackIds(const std::vector<uint32_t>& ids) { return base::PackArray(ids); }

inline std::vector<uint32_t> UnpackIds(const std::string& bytes) {
  return base::UnpackArray<uint32_t>(bytes);
}

inline SequenceDelta MakeDelta(base::TicketId ticket, int64_t begin,
                               const std::vector<uint32_t>& ids) {
  SequenceDelta delta;
  delta.handle = ticket.value();
  delta.token_begin = begin;
  delta.token_ids = PackIds(ids);
  delta.logprobs.raw = PackIds(ids);  // The bits do not matter, only that they are equal.
  return delta;
}

inline SequenceDelta WithEnd(SequenceDelta delta, SequenceEnd end) {
  delta.end = std::move(end);
  return delta;
}

inline SequenceEnd Stop() { return {.reason = EndReason::kStop}; }

inline SequenceEnd ErrorEnd(absl::Status error) {
  return {.reason = EndReason::kError, .error = std::move(error)};
}

// The ends among the deltas that go to gateways.
inline std::vector<SequenceEnd> Ends(const RouterActions& actions) {
  std::vector<SequenceEnd> ends;
  for (const GatewayDelta& item : actions.deltas) {
    if (item.delta.end.has_value()) ends.push_back(*item.delta.end);
  }
  return ends;
}

// A core with simulated time, one gateway, and everything it wants sent kept for the test.
class CoreHarness {
 public:
  static RouterCoreOptions DefaultOptions() { return {}; }

  explicit CoreHarness(RouterCoreOptions options = DefaultOptions())
      : metrics(&registry),
        policy({}),
        core(options, {.policy = &policy,
                       .clock = &clock,
                       .metrics = &metrics,
                       .logger = log::Logger({.service = "router"}, &clock, &sink)}) {}

  // Two workers and a scheduler.
  void Connect(const std::vector<WorkerState>& workers = {State("a"), State("b")}) {
    core.SchedulerConnected();
    core.ApplySnapshot(workers);
  }

  std::shared_ptr<SequenceSpec> Spec(const std::string& name, std::vector<uint32_t> prompt = {}) {
    auto spec = std::make_shared<SequenceSpec>();
    spec->sequence = base::SequenceId(name);
    spec->request = base::RequestId(name);
    spec->group_id = name;
    if (prompt.empty()) prompt = {static_cast<uint32_t>(base::Hash64(name)), 2, 3};
    spec->prompt = std::make_shared<const std::vector<uint32_t>>(std::move(prompt));
    spec->max_new_tokens = 100;
    return spec;
  }
  OpenSequence MakeOpen(uint64_t handle, std::shared_ptr<const SequenceSpec> spec) {
    return {.handle = handle,
            .spec = std::move(spec),
            .time_left = absl::Seconds(60),
            .credit_tokens = 50,
            .retry_budget = 3};
  }
  void Open(uint64_t handle, std::shared_ptr<const SequenceSpec> spec) {
    core.Open(gateway, {MakeOpen(handle, std::move(spec))});
  }
  void Open(uint64_t handle) { Open(handle, Spec("s" + std::to_string(handle))); }

  // The scheduler's yes.
  Ticket TicketFor(const WorkerKey& worker, int64_t attempt = 1) {
    return {.id = base::TicketId(++last_ticket),
            .worker = worker,
            .attempt = attempt,
            .epoch = base::Epoch(1),
            .plan = {.split_kv_size = 256, .length = 3}};
  }
  // One for a sequence still to come.
  AdvanceTicket AdvanceFor(const WorkerKey& worker, int64_t tokens_max = 200) {
    Ticket ticket = TicketFor(worker);
    ticket.plan.length = 0;
    ticket.expires = absl::Seconds(5);
    return {std::move(ticket), tokens_max};
  }
  // Takes the only admission, grants it on `worker` and returns the start that follows.
  WorkerStart GrantOnly(const WorkerKey& worker, int64_t attempt = 1) {
    RouterActions asked = core.TakeActions();
    LOCKSTEP_CHECK_EQ(asked.admits.size(), 1u);
    core.TicketGranted(asked.admits[0].handle, TicketFor(worker, attempt));
    RouterActions actions = core.TakeActions();
    LOCKSTEP_CHECK_EQ(actions.workers.size(), 1u);
    streams[worker] = actions.workers[0].stream;
    return actions.workers[0].starts.at(0);
  }
  // Opens a sequence and runs it on `worker`.
  WorkerStart Run(uint64_t handle, const WorkerKey& worker) {
    Open(handle);
    return GrantOnly(worker);
  }
  void Frame(const WorkerKey& worker, std::vector<SequenceDelta> deltas) {
    core.FrameCame(streams.at(worker), {.deltas = std::move(deltas)});
  }
  void Advance(absl::Duration duration) {
    clock.Advance(duration);
    core.Tick();
  }

  base::SimClock clock;
  metrics::Registry registry;
  RouterMetrics metrics;
  log::CaptureSink sink;
  PrefixAffinePolicy policy;
  RouterCore core;
  const GatewayId gateway{1};
  uint64_t last_ticket = 0;
  std::map<WorkerKey, StreamId> streams;
};

}  // namespace lockstep::router
