// The router's core alone: what one sequence costs from open to end, and one frame of many.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "common/base/clock.h"
#include "common/log/sink.h"
#include "common/metrics/registry.h"
#include "services/router/prefix_affine_policy.h"
#include "services/router/router_core.h"

namespace lockstep::router {
namespace {

class Cluster {
 public:
  explicit Cluster(int64_t workers) {
    core.SchedulerConnected();
    std::vector<WorkerState> states;
    for (int64_t i = 0; i < workers; ++i) {
      states.push_back(
          {.worker = {base::WorkerId(absl::StrCat("worker-", i)), base::Incarnation(1)},
           .address = "x"});
    }
    core.ApplySnapshot(states);
  }
  // Opens `count` sequences, grants all, and returns where they run.
  std::vector<WorkerBatch> Start(int64_t count) {
    std::vector<OpenSequence> opens;
    for (int64_t i = 0; i < count; ++i) {
      auto spec = std::make_shared<SequenceSpec>();
      spec->sequence = base::SequenceId(absl::StrCat("request/", ++handle_));
      spec->prompt = std::make_shared<const std::vector<uint32_t>>(256, handle_);
      spec->max_new_tokens = 1 << 20;
      opens.push_back({.handle = handle_,
                       .spec = std::move(spec),
                       .time_left = absl::Hours(1),
                       .credit_tokens = 1 << 20,
                       .retry_budget = 8});
    }
    core.Open(GatewayId(1), std::move(opens));
    for (const AdmitRequest& admit : core.TakeActions().admits) {
      core.TicketGranted(
          admit.handle,
          {.id = base::TicketId(++ticket_), .worker = admit.candidates.front(), .attempt = 1});
    }
    return core.TakeActions().workers;
  }

  base::RealClock clock;
  metrics::Registry registry;
  RouterMetrics metrics{&registry};
  log::StderrSink sink;
  PrefixAffinePolicy policy{{}};
  RouterCore core{{.sequences_max = 1 << 20},
                  {.policy = &policy,
                   .clock = &clock,
                   .metrics = &metrics,
                   .logger = log::Logger({.service = "router", .level_min = log::Level::kError},
                                         &clock, &sink)}};

 private:
  uint64_t handle_ = 0;
  uint64_t ticket_ = 0;
};

// Arguments: workers; sequences already in flight.
void BM_OpenGrantEnd(benchmark::State& state) {
  Cluster cluster(state.range(0));
  for (int64_t left = state.range(1); left > 0; left -= 1000) cluster.Start(1000);
  for (auto _ : state) {
    for (const WorkerBatch& batch : cluster.Start(1)) {
      WorkerFrame frame;
      SequenceDelta& delta = frame.deltas.emplace_back();
      delta.handle = batch.starts[0].ticket.id.value();
      delta.token_ids = "\1\1\1\1";
      delta.end = SequenceEnd{.reason = EndReason::kStop};
      cluster.core.FrameCame(batch.stream, std::move(frame));
    }
    benchmark::DoNotOptimize(cluster.core.TakeActions());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_OpenGrantEnd)->Args({2, 0})->Args({1000, 0})->Args({1000, 100000});

// One token for each of 256 sequences of one worker.
void BM_Frame(benchmark::State& state) {
  Cluster cluster(1);
  const std::vector<WorkerBatch> batches = cluster.Start(256);
  int64_t position = 0;
  for (auto _ : state) {
    WorkerFrame frame;
    for (const WorkerStart& start : batches[0].starts) {
      SequenceDelta& delta = frame.deltas.emplace_back();
      delta.handle = start.ticket.id.value();
      delta.token_begin = position;
      delta.token_ids = "\1\1\1\1";
      delta.logprobs.raw = delta.logprobs.scaled = "\2\2\2\2";
    }
    ++position;
    cluster.core.FrameCame(batches[0].stream, std::move(frame));
    benchmark::DoNotOptimize(cluster.core.TakeActions());
  }
  state.SetItemsProcessed(state.iterations() * 256);
}
BENCHMARK(BM_Frame);

}  // namespace
}  // namespace lockstep::router
