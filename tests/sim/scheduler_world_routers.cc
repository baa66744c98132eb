#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/scheduler_world.h"

namespace lockstep::scheduler::sim {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

// A new stream to the scheduler; whatever waited on the old one is asked for again.
void World::OpenStream(int index) {
  Router& router = routers_[index];
  router.stream = RouterStream(++streams_);
  router.by_handle.clear();
  router.stock.clear();
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].router == index && sequences_[i].phase == Phase::kAdmitting) {
      Readmit(static_cast<int>(i), Delay());
    }
  }
}

void World::NewGroup() {
  if (!busy() || static_cast<int>(sequences_.size()) >= options_.sequences) return;
  const int router = static_cast<int>(Uniform(0, options_.routers - 1));
  const int64_t samples = Chance(0.2) ? Uniform(8, 16) : Uniform(1, 3);
  // Some need a worker of their own: they must not be passed for ever.
  const int64_t prompt = Chance(0.1) ? Uniform(1400, 1700) : Uniform(1, 400);
  const int64_t new_tokens = Uniform(0, 200);
  for (int64_t i = 0; i < samples; ++i) {
    sequences_.push_back({.router = router,
                          .group = absl::StrCat("g", sequences_.size() - i),
                          .demand = {.length = prompt,
                                     .prompt_tokens = prompt,
                                     .new_tokens_max = new_tokens,
                                     .prefix_hash = sequences_.size() - i},
                          .entry_epoch = core_->state().epoch,
                          .phase = Phase::kAdmitting,
                          .deadline = clock_.Now() + kPatience});
    Readmit(static_cast<int>(sequences_.size()) - 1, absl::ZeroDuration());
  }
  const absl::Duration pause = options_.busy * samples / options_.sequences * 0.8;
  After(pause, [this] { NewGroup(); });
}

void World::Readmit(int index, absl::Duration delay) {
  sequences_[index].phase = Phase::kAdmitting;
  sequences_[index].handle = 0;
  After(delay, [this, index] { Admit(index); });
}

void World::Admit(int index) {
  Sequence& sequence = sequences_[index];
  if (sequence.phase != Phase::kAdmitting || sequence.handle != 0) return;
  if (StartAhead(index)) return;
  Router& router = routers_[sequence.router];
  std::vector<WorkerName> candidates;
  for (const WorkerView& view : router.view) {
    if (!view.draining) candidates.push_back(view.name);
  }
  if (candidates.empty()) return Readmit(index, absl::Milliseconds(200));
  std::shuffle(candidates.begin(), candidates.end(), random_);
  candidates.resize(std::min<size_t>(candidates.size(), 3));
  sequence.handle = ++router.handles;
  router.by_handle[sequence.handle] = index;
  const AdmissionRequest request{.stream = router.stream,
                                 .handle = sequence.handle,
                                 .sequence = base::SequenceId(absl::StrCat(index)),
                                 .request = base::RequestId(absl::StrCat(index)),
                                 .group = sequence.group,
                                 .attempt = sequence.attempt,
                                 .demand = sequence.demand,
                                 .candidates = candidates,
                                 .entry_epoch = sequence.entry_epoch,
                                 .deadline = sequence.deadline};
  ToScheduler(sequence.router, [this, request](SchedulerCore& core) {
    checker_.OnAdmit(request, clock_.Now());
    core.Admit({request});
  });
}

// In order, and lost with the stream: what is not given back is ended by the worker's report.
void World::ToScheduler(int index, std::function<void(SchedulerCore&)> command) {
  Router& router = routers_[index];
  router.to_scheduler = std::max(router.to_scheduler, clock_.Now() + Delay());
  After(router.to_scheduler - clock_.Now(),
        [this, index, command = std::move(command), stream = router.stream] {
          if (routers_[index].stream != stream) return;
          Ask([&](SchedulerCore& core) { return command(core), 0; });
        });
}

// With any ticket that is good for it. The scheduler hears of it late.
bool World::StartAhead(int index) {
  Sequence& sequence = sequences_[index];
  Router& router = routers_[sequence.router];
  const Demand& demand = sequence.demand;
  const auto it = std::find_if(router.stock.begin(), router.stock.end(), [&](const auto& grant) {
    return grant.tokens_max >= demand.length + demand.new_tokens_max;
  });
  if (sequence.attempt > 0 || it == router.stock.end()) return false;
  Ticket ticket = it->ticket;
  router.stock.erase(it);
  ticket.sequence = base::SequenceId(absl::StrCat(index));
  ticket.plan.length = demand.length;
  sequence.phase = Phase::kRunning;
  sequence.ticket = ticket;
  sequence.attempt = 1;
  sequence.entry_epoch = ticket.epoch;
  ++tally_.ahead;
  After(Delay(), [this, ticket, index] { StartOnWorker(WorkerOf(ticket.worker), ticket, index); });
  const AdmissionRequest report{.stream = router.stream,
                                .sequence = ticket.sequence,
                                .request = base::RequestId(absl::StrCat(index)),
                                .demand = demand,
                                .used_ticket = ticket.id};
  router.to_scheduler = std::max(router.to_scheduler, clock_.Now() + Delay());
  ToScheduler(sequence.router, [report](SchedulerCore& core) { core.Use({report}); });
  return true;
}

void World::OnAdvance(const AdvanceGrant& grant) {
  for (size_t r = 0; r < routers_.size(); ++r) {
    if (routers_[r].stream != grant.stream) continue;
    const int index = static_cast<int>(r);
    Router& router = routers_[r];
    router.from_scheduler = std::max(router.from_scheduler, clock_.Now() + Delay());
    After(router.from_scheduler - clock_.Now(), [this, grant, index] {
      if (routers_[index].stream != grant.stream) return;
      routers_[index].stock.push_back(grant);
      After(grant.ticket.expires_after / 2, [this, grant, index] {
        std::vector<AdvanceGrant>& stock = routers_[index].stock;
        const auto unused = std::erase_if(
            stock, [&](const AdvanceGrant& other) { return other.ticket.id == grant.ticket.id; });
        if (unused > 0) Release(index, grant.ticket.id);
      });
    });
  }
}

// Every router hears of a new epoch, in order with all else.
void World::OnEpoch() {
  const base::Epoch epoch = core_->state().epoch;
  for (size_t r = 0; r < routers_.size(); ++r) {
    Router& router = routers_[r];
    router.from_scheduler = std::max(router.from_scheduler, clock_.Now() + Delay());
    const int index = static_cast<int>(r);
    After(router.from_scheduler - clock_.Now(), [this, index, epoch, stream = router.stream] {
      if (routers_[index].stream != stream) return;
      std::erase_if(routers_[index].stock, [&](const AdvanceGrant& grant) {
        if (grant.ticket.epoch >= epoch) return false;
        Release(index, grant.ticket.id);
        return true;
      });
    });
  }
}

void World::OnOutcome(const AdmitOutcome& outcome) {
  for (size_t r = 0; r < routers_.size(); ++r) {
    Router& router = routers_[r];
    if (router.stream != outcome.stream) continue;
    router.from_scheduler = std::max(router.from_scheduler, clock_.Now() + Delay());
    After(router.from_scheduler - clock_.Now(), [this, outcome, r] {
      Router& router = routers_[r];
      if (router.stream != outcome.stream) return;
      const auto it = router.by_handle.find(outcome.handle);
      if (it == router.by_handle.end()) return;
      const int index = it->second;
      router.by_handle.erase(it);
      Sequence& sequence = sequences_[index];
      if (outcome.ticket.ok()) {
        ++tally_.grants;
        if (sequence.attempt > 0) ++tally_.resumptions;
        sequence.phase = Phase::kRunning;
        sequence.ticket = *outcome.ticket;
        sequence.attempt = outcome.ticket->attempt;
        const int worker = WorkerOf(outcome.ticket->worker);
        const Ticket ticket = *outcome.ticket;
        After(Delay(), [this, worker, ticket, index] { StartOnWorker(worker, ticket, index); });
        return;
      }
      switch (outcome.ticket.status().code()) {
        case absl::StatusCode::kUnavailable:
        case absl::StatusCode::kResourceExhausted:
          return Readmit(index, absl::Milliseconds(200));
        case absl::StatusCode::kAborted:
          ++tally_.aborted;
          return EndSequence(index);
        case absl::StatusCode::kDeadlineExceeded:
          return EndSequence(index);
        default:
          checker_.Problem(outcome.ticket.status().ToString());
      }
    });
  }
}

void World::OnLost(int index, const WorkerName& name) {
  Router& router = routers_[index];
  router.from_scheduler = std::max(router.from_scheduler, clock_.Now() + Delay());
  const RouterStream stream = router.stream;
  After(router.from_scheduler - clock_.Now(), [this, index, name, stream] {
    if (routers_[index].stream == stream) MoveSequences(index, name);
  });
}

void World::MoveSequences(int index, const WorkerName& name) {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& sequence = sequences_[i];
    if (sequence.router != index || sequence.phase != Phase::kRunning) continue;
    if (sequence.ticket->worker != name) continue;
    Release(index, sequence.ticket->id);
    Readmit(static_cast<int>(i), absl::ZeroDuration());
  }
}

void World::Release(int index, base::TicketId ticket) {
  ToScheduler(index, [ticket](SchedulerCore& core) { core.Release({ticket}); });
}

void World::EndSequence(int index) {
  sequences_[index].phase = Phase::kOver;
  ++sequences_[index].ends;
}

// What it had in work is over; a gateway would submit it again as other sequences.
void World::RestartRouter(int index) {
  const RouterStream stream = routers_[index].stream;
  checker_.OnStreamClosed(stream);
  Ask([&](SchedulerCore& core) { return core.CloseStream(stream), 0; });
  for (size_t i = 0; i < sequences_.size(); ++i) {
    Sequence& sequence = sequences_[i];
    if (sequence.router != index) continue;
    if (sequence.phase == Phase::kAdmitting || sequence.phase == Phase::kRunning) {
      EndSequence(static_cast<int>(i));
    }
  }
  // The workers notice that its streams broke.
  for (Worker& worker : workers_) {
    std::vector<base::TicketId> broken;
    for (const auto& [ticket, running] : worker.running) {
      if (sequences_[running.sequence].router == index) broken.push_back(ticket);
    }
    for (const base::TicketId ticket : broken) Finish(worker, ticket, /*aborted=*/true);
  }
  OpenStream(index);
}

}  // namespace lockstep::scheduler::sim
