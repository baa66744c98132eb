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
  router.to_scheduler = std::max(router.to_scheduler, clock_.Now() + Delay());
  After(router.to_scheduler - clock_.Now(), [this, request, index] {
    if (routers_[sequences_[index].router].stream != request.stream) return;
    checker_.OnAdmit(request, clock_.Now());
    Ask([&](SchedulerCore& core) { return core.Admit({request}), 0; });
  });
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
  Router& router = routers_[index];
  router.to_scheduler = std::max(router.to_scheduler, clock_.Now() + Delay());
  const RouterStream stream = router.stream;
  After(router.to_scheduler - clock_.Now(), [this, index, ticket, stream] {
    // Lost with the stream: the worker's report ends the ticket.
    if (routers_[index].stream != stream) return;
    Ask([&](SchedulerCore& core) { return core.Release({ticket}), 0; });
  });
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
