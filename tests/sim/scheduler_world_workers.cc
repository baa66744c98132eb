#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/scheduler_world.h"

namespace lockstep::scheduler::sim {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(40);
constexpr absl::Duration kHeartbeat = absl::Milliseconds(700);
constexpr int64_t kTokensAStep = 8;

}  // namespace

int World::WorkerOf(const WorkerName& name) const {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].registration.name.id == name.id) return static_cast<int>(i);
  }
  return 0;
}

void World::StartOnWorker(int index, const Ticket& ticket, int sequence_index) {
  Worker& worker = workers_[index];
  Sequence& sequence = sequences_[sequence_index];
  const bool wanted = sequence.phase == Phase::kRunning && sequence.ticket->id == ticket.id;
  if (!wanted) return Release(sequence.router, ticket.id);
  const bool mine = worker.up && worker.registration.name == ticket.worker && worker.registered;
  if (!mine || ticket.epoch < worker.known_epoch) {
    Release(sequence.router, ticket.id);
    return Readmit(sequence_index, Delay());
  }
  worker.running[ticket.id] = {
      .ticket = ticket,
      .sequence = sequence_index,
      .entry_epoch = sequence.entry_epoch,
      .length = ticket.plan.length,
      .steps_left = Uniform(0, sequence.demand.new_tokens_max / kTokensAStep)};
}

// Blocks go to the oldest first; who gets none waits, and has lost what it had.
void World::PlaceBlocks(Worker& worker) {
  int64_t free = worker.registration.capacity.kv_blocks;
  for (auto& [id, running] : worker.running) {
    const int64_t blocks = BlocksFor(running.length + 1, 16);
    if (blocks <= free) {
      running.kv_blocks = blocks;
      free -= blocks;
    } else {
      running.kv_blocks = 0;
      running.prefilled = 0;
    }
  }
}

void World::StepWorker(int index) {
  After(kStep, [this, index] { StepWorker(index); });
  Worker& worker = workers_[index];
  if (!worker.up || worker.stalled_until > clock_.Now() || worker.hold) return;
  if (worker.running.empty()) return;
  ++worker.steps;
  PlaceBlocks(worker);
  std::vector<base::TicketId> done;
  for (auto& [id, running] : worker.running) {
    if (running.kv_blocks == 0) continue;
    const int64_t end = std::min(running.prefilled + 128, running.length);
    if (running.prefilled < running.length) {
      const int64_t shift = Chance(options_.faults.cheat) ? 1 : 0;
      worker.cuts.push_back(
          {.ticket = id, .begin = running.prefilled, .end = end + shift, .length = running.length});
      running.prefilled = end;
    } else if (running.steps_left-- > 0) {
      running.length += kTokensAStep;
      running.prefilled = running.length;
    } else {
      done.push_back(id);
    }
  }
  for (const base::TicketId id : done) Finish(worker, id, /*aborted=*/false);
}

void World::Finish(Worker& worker, base::TicketId ticket, bool aborted) {
  const Running running = worker.running.at(ticket);
  worker.running.erase(ticket);
  worker.ended.push_back(ticket);
  After(Delay(), [this, running, aborted] {
    Sequence& sequence = sequences_[running.sequence];
    if (sequence.phase != Phase::kRunning || sequence.ticket->id != running.ticket.id) return;
    if (aborted) ++tally_.aborted;
    EndSequence(running.sequence);
    Release(sequence.router, running.ticket.id);
  });
}

// Every router notices that its stream to this life of the worker has ended.
void World::BreakStreams(const WorkerName& name) {
  for (int i = 0; i < options_.routers; ++i) {
    After(Delay(), [this, i, name] { MoveSequences(i, name); });
  }
}

void World::NewLife(Worker& worker) {
  BreakStreams(worker.registration.name);
  worker.registration.name.incarnation = base::Incarnation(++incarnations_);
  worker.registered = false;
  worker.hold = false;
  worker.draining = false;
  worker.steps = 0;
  worker.running.clear();
  worker.cuts.clear();
  worker.ended.clear();
}

void World::RegisterWorker(int index) {
  Worker& worker = workers_[index];
  if (!worker.up || worker.stalled_until > clock_.Now()) {
    return After(absl::Milliseconds(200), [this, index] {
      if (!workers_[index].registered) RegisterWorker(index);
    });
  }
  WorkerRegistration registration = worker.registration;
  PlaceBlocks(worker);
  for (const auto& [id, running] : worker.running) {
    registration.held.push_back({.ticket = id, .kv_blocks = running.kv_blocks});
  }
  const auto answer = Ask([&](SchedulerCore& core) { return core.Register(registration); });
  if (answer.ok()) {
    checker_.OnRegistered(registration.name);
    worker.registered = true;
    worker.last_heard = clock_.Now();
    worker.known_office = answer->scheduler_epoch;
    worker.known_epoch = std::max(worker.known_epoch, answer->admission_epoch);
    return;
  }
  NewLife(worker);
  After(absl::Milliseconds(300), [this, index] {
    if (!workers_[index].registered) RegisterWorker(index);
  });
}

void World::SendHeartbeat(int index) {
  After(kHeartbeat, [this, index] { SendHeartbeat(index); });
  Worker& worker = workers_[index];
  if (!worker.up || !worker.registered || worker.stalled_until > clock_.Now()) return;
  // Stalled for longer than its lease: it sends nothing more under this name.
  if (clock_.Now() - worker.last_heard > core_options_.lease &&
      worker.stalled_until > worker.last_heard) {
    NewLife(worker);
    return RegisterWorker(index);
  }
  if (worker.draining && worker.running.empty()) {
    const WorkerName name = worker.registration.name;
    (void)Ask([&](SchedulerCore& core) { return core.Leave(name); });
    NewLife(worker);
    return RegisterWorker(index);
  }
  WorkerReport report{.name = worker.registration.name,
                      .steps = worker.steps,
                      .idle = worker.running.empty() || worker.hold,
                      .cuts = worker.cuts,
                      .ended = worker.ended};
  int64_t used = 0;
  for (const auto& [id, running] : worker.running) {
    report.held.push_back({.ticket = id, .kv_blocks = running.kv_blocks});
    used += running.kv_blocks;
  }
  report.kv_blocks_free = worker.registration.capacity.kv_blocks - used;
  if (Chance(options_.faults.heartbeat_loss)) return;
  const auto deliver = [this, index, report, generation = generation_] {
    if (generation != generation_) return;
    const auto epoch = Ask([&](SchedulerCore& core) { return core.Heartbeat(report); });
    if (epoch.ok()) {
      Worker& to = workers_[index];
      to.known_epoch = std::max(to.known_epoch, *epoch);
    }
    After(Delay(), [this, index, report, status = epoch.status()] {
      OnHeartbeatAnswer(index, report.name.incarnation, status, report.cuts.size(),
                        report.ended.size());
    });
  };
  After(Delay(), deliver);
  if (Chance(options_.faults.heartbeat_duplicate)) {
    After(Delay() + absl::Milliseconds(Uniform(0, 900)), deliver);
  }
}

void World::OnHeartbeatAnswer(int index, base::Incarnation incarnation, const absl::Status& status,
                              size_t cuts, size_t ended) {
  Worker& worker = workers_[index];
  if (!worker.up || worker.registration.name.incarnation != incarnation) return;
  if (status.ok()) {
    worker.last_heard = clock_.Now();
    worker.cuts.erase(worker.cuts.begin(),
                      worker.cuts.begin() + std::min(cuts, worker.cuts.size()));
    worker.ended.erase(worker.ended.begin(),
                       worker.ended.begin() + std::min(ended, worker.ended.size()));
    return;
  }
  worker.registered = false;
  if (status.code() != absl::StatusCode::kNotFound) NewLife(worker);
  RegisterWorker(index);
}

void World::OnControl(const ControlCall& call) {
  const int index = WorkerOf(call.worker);
  const uint64_t generation = generation_;
  absl::Time& delivery = workers_[index].commands;
  delivery = std::max(delivery, clock_.Now() + Delay());
  After(delivery - clock_.Now(), [this, call, index, generation] {
    Worker& worker = workers_[index];
    absl::StatusOr<ControlReply> reply = absl::UnavailableError("nobody there");
    if (worker.up && worker.registration.name == call.worker &&
        worker.stalled_until <= clock_.Now() && call.scheduler_epoch >= worker.known_office) {
      worker.known_office = call.scheduler_epoch;
      worker.known_epoch = std::max(worker.known_epoch, call.admission_epoch);
      worker.hold = call.command.hold;
      std::vector<base::TicketId> ending;
      for (const auto& [id, running] : worker.running) {
        const base::RequestId request(absl::StrCat(running.sequence));
        const auto& ids = call.command.abort_requests;
        if ((call.command.abort_all && running.entry_epoch < call.admission_epoch) ||
            std::find(ids.begin(), ids.end(), request) != ids.end()) {
          ending.push_back(id);
        }
      }
      for (const base::TicketId id : ending) Finish(worker, id, /*aborted=*/true);
      reply = ControlReply{.aborted_sequences = static_cast<int64_t>(ending.size())};
    }
    After(Delay(), [this, call, reply, generation] {
      if (generation != generation_) return;
      Ask([&](SchedulerCore& core) {
        return core.OnControlReply(call.operation, call.worker, reply), 0;
      });
    });
  });
}

}  // namespace lockstep::scheduler::sim
