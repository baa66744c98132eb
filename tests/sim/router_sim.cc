#include "tests/sim/router_sim.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace lockstep::router {
namespace {

constexpr absl::Duration kLease = absl::Seconds(3);
constexpr absl::Duration kStep = absl::Milliseconds(20);
constexpr int64_t kPromptChunk = 4;

// The model: a token depends on everything before it, so that a sequence that goes on from a wrong
// prefix shows it at once.
uint32_t NextToken(const SequenceSpec& spec, const std::vector<uint32_t>& outputs) {
  const uint64_t prompt = base::Hash64({reinterpret_cast<const char*>(spec.prompt_ids().data()),
                                        spec.prompt_ids().size() * sizeof(uint32_t)});
  return static_cast<uint32_t>(base::Hash64({reinterpret_cast<const char*>(outputs.data()),
                                             outputs.size() * sizeof(uint32_t)},
                                            prompt) %
                               1000);
}

bool Stops(uint32_t id) { return id % 40 == 0; }

std::string Bits(uint32_t id, int64_t position) {
  const uint32_t bits = id * 2654435761u + static_cast<uint32_t>(position);
  return {reinterpret_cast<const char*>(&bits), sizeof(bits)};
}

std::string IdBytes(uint32_t id) { return {reinterpret_cast<const char*>(&id), sizeof(id)}; }

}  // namespace

RouterSim::RouterSim(Options options)
    : options_(options),
      random_(options.seed),
      metrics_(&registry_),
      policy_({}),
      core_(
          [&] {
            RouterCoreOptions core;
            core.poison_limit = options.poison_limit;
            return core;
          }(),
          {.policy = &policy_,
           .clock = &clock_,
           .metrics = &metrics_,
           .logger = log::Logger({.service = "router", .level_min = log::Level::kError}, &clock_,
                                 &sink_)}) {
  workers_.resize(static_cast<size_t>(options_.workers));
  for (size_t i = 0; i < workers_.size(); ++i) Restart(i);
  gateways_ = {++last_gateway_, ++last_gateway_};
}

bool RouterSim::Chance(double probability) {
  return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

absl::Duration RouterSim::Latency() {
  return absl::Microseconds(std::uniform_int_distribution<int>(50, 5000)(random_));
}

void RouterSim::At(absl::Time time, Action action) {
  events_.push({time, ++last_order_, std::make_shared<Action>(std::move(action))});
}

void RouterSim::Problem(const std::string& what) {
  problems_.push_back(absl::StrCat("seed ", options_.seed, " at ",
                                   absl::FormatDuration(clock_.Now() - absl::UnixEpoch()), ": ",
                                   what));
}

void RouterSim::Run() {
  Apply([this] { core_.SchedulerConnected(); });
  Snapshot();
  At(clock_.Now(), [this] { OpenSome(); });
  At(clock_.Now() + absl::Seconds(1), [this] { Second(); });
  for (size_t i = 0; i < workers_.size(); ++i) At(clock_.Now() + kStep, [this, i] { Step(i); });
  const absl::Time limit = clock_.Now() + absl::Seconds(900);
  const auto done = [this] {
    return opened_ >= options_.sequences && core_.sequence_count() == 0 &&
           std::all_of(samples_.begin(), samples_.end(), [](const auto& entry) {
             return entry.second.ended || entry.second.given_up;
           });
  };
  while (!done() && clock_.Now() < limit) {
    const Event event = events_.top();
    events_.pop();
    clock_.Advance(event.time - clock_.Now());
    (*event.action)();
    Apply([this] {
      if (core_.NextWakeup() <= clock_.Now()) core_.Tick();
    });
  }
  if (!done()) Problem(absl::StrCat(core_.sequence_count(), " sequences never ended"));
  if (!scheduler_up_) Apply([this] { core_.SchedulerConnected(); });
  scheduler_up_ = true;
  // Tickets that nobody has used are given back.
  clock_.Advance(absl::Seconds(5));
  Apply([this] { core_.Tick(); });
  for (const auto& [ticket, released] : received_tickets_) {
    if (released != 1) Problem(absl::StrCat("ticket ", ticket.value(), " released ", released));
  }
  if (metrics_.sequences.value() != 0) Problem("the gauge of sequences is not 0");
}

void RouterSim::Apply(const Action& event) {
  event();
  Dispatch();
}

void RouterSim::OpenSome() {
  const uint64_t gateway = gateways_[random_() % gateways_.size()];
  const int count = 1 + static_cast<int>(random_() % 6);
  const uint32_t salt = static_cast<uint32_t>(random_());
  std::vector<OpenSequence> opens;
  for (int i = 0; i < count && opened_ < options_.sequences; ++i) {
    const uint64_t handle = static_cast<uint64_t>(++opened_);
    Sample sample;
    sample.gateway = GatewayId(gateway);
    sample.spec = std::make_shared<SequenceSpec>();
    sample.spec->sequence = base::SequenceId(absl::StrCat("s", handle));
    sample.spec->group_id = absl::StrCat("g", salt);
    sample.spec->prompt = std::make_shared<const std::vector<uint32_t>>(
        std::vector<uint32_t>{salt, static_cast<uint32_t>(handle), 1, 2, 3, 4, 5, 6, 7});
    sample.spec->max_new_tokens =
        1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(options_.new_tokens_max));
    if (Chance(0.3)) sample.spec->deliver_prompt_from = 1 + static_cast<int64_t>(random_() % 9);
    sample.prompt_next = sample.spec->deliver_prompt_from;
    while (static_cast<int64_t>(sample.expected.size()) < sample.spec->max_new_tokens) {
      sample.expected.push_back(NextToken(*sample.spec, sample.expected));
      if (Stops(sample.expected.back())) break;
    }
    opens.push_back({.handle = handle,
                     .spec = sample.spec,
                     .time_left = absl::Seconds(3600),
                     .credit_tokens = 4,
                     .retry_budget = 1000000});
    samples_[{GatewayId(gateway), handle}] = std::move(sample);
    if (Chance(options_.faults.sequence_cancelled)) {
      At(clock_.Now() + absl::Milliseconds(random_() % 2000), [this, gateway, handle] {
        samples_[{GatewayId(gateway), handle}].given_up = true;
        Apply([&] { core_.Cancel(GatewayId(gateway), handle); });
      });
    }
  }
  Apply([&] { core_.Open(GatewayId(gateway), std::move(opens)); });
  if (opened_ < options_.sequences) {
    At(clock_.Now() + absl::Milliseconds(random_() % 300), [this] { OpenSome(); });
  }
}

// Heartbeats, leases, and the chances for faults.
void RouterSim::Second() {
  const SimFaults& faults = options_.faults;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker* worker = &workers_[i];
    if (worker->alive && !worker->stalled) worker->last_heartbeat = clock_.Now();
    if (clock_.Now() - worker->last_heartbeat >= kLease) {
      // The scheduler gives it up. A zombie notices later, and what it kept back goes out first.
      const WorkerKey lost = worker->key;
      std::erase_if(reserved_, [&](const auto& entry) { return entry.second == lost; });
      if (scheduler_up_) {
        At(clock_.Now() + Latency(), [this, lost] { Apply([&] { core_.WorkerLost(lost); }); });
      }
      if (worker->stalled) {
        for (WorkerFrame& frame : worker->withheld) SendFrame(worker, std::move(frame));
        worker->withheld.clear();
      }
      Restart(i);
      continue;
    }
    if (!worker->alive) continue;
    if (Chance(faults.worker_killed)) KillWorker(worker, /*break_stream=*/true);
    if (Chance(faults.worker_stalled)) worker->stalled = true;
    if (Chance(faults.stream_broken) && worker->stream != StreamId(0)) {
      const StreamId stream = std::exchange(worker->stream, StreamId(0));
      worker->attempts.clear();  // A worker drops the sequences of a vanished stream.
      At(std::max(worker->arrival, clock_.Now() + Latency()), [this, stream] {
        Apply([&] { core_.StreamClosed(stream, absl::UnavailableError("reset")); });
      });
    }
    if (Chance(faults.worker_drained) && !worker->draining) {
      worker->draining = true;
      WorkerFrame frame;
      for (const auto& [ticket, attempt] : worker->attempts) frame.hand_offs.push_back(ticket);
      worker->attempts.clear();
      SendFrame(worker, std::move(frame));
      At(clock_.Now() + absl::Seconds(2), [this, i] { Restart(i); });
    }
  }
  if (scheduler_up_ && Chance(faults.scheduler_lost)) {
    scheduler_up_ = false;
    queue_.clear();
    ++scheduler_stream_;
    Apply([this] { core_.SchedulerLost(); });
    At(clock_.Now() + absl::Milliseconds(500), [this] {
      scheduler_up_ = true;
      Apply([this] { core_.SchedulerConnected(); });
    });
  }
  for (uint64_t& gateway : gateways_) {
    if (!Chance(faults.gateway_lost)) continue;
    for (auto& [key, sample] : samples_) {
      if (key.first == GatewayId(gateway)) sample.given_up = true;
    }
    Apply([&] { core_.GatewayLost(GatewayId(gateway)); });
    gateway = ++last_gateway_;
  }
  Snapshot();
  At(clock_.Now() + absl::Seconds(1), [this] { Second(); });
}

void RouterSim::KillWorker(Worker* worker, bool break_stream) {
  worker->alive = false;
  worker->attempts.clear();
  const StreamId stream = std::exchange(worker->stream, StreamId(0));
  if (!break_stream || stream == StreamId(0)) return;
  At(std::max(worker->arrival, clock_.Now() + Latency()), [this, stream] {
    Apply([&] { core_.StreamClosed(stream, absl::UnavailableError("reset")); });
  });
}

void RouterSim::Restart(size_t index) {
  Worker* worker = &workers_[index];
  const absl::Time arrival = worker->arrival;
  *worker = {};
  worker->key = {base::WorkerId(absl::StrCat("w", index)), base::Incarnation(++last_incarnation_)};
  worker->last_heartbeat = clock_.Now();
  worker->arrival = std::max(arrival, clock_.Now());
}

// One step of a worker: every sequence with credit gets on by one chunk or one token.
void RouterSim::Step(size_t index) {
  Worker* worker = &workers_[index];
  if (worker->alive) {
    WorkerFrame frame;
    for (auto it = worker->attempts.begin(); it != worker->attempts.end();) {
      SequenceDelta delta;
      delta.handle = it->first.value();
      const bool any = Advance(&it->second, &delta);
      const bool ended = delta.end.has_value();
      if (any) frame.deltas.push_back(std::move(delta));
      it = ended ? worker->attempts.erase(it) : std::next(it);
    }
    if (!frame.deltas.empty()) {
      if (worker->stalled) {
        worker->withheld.push_back(std::move(frame));
      } else {
        SendFrame(worker, std::move(frame));
      }
    }
  }
  At(clock_.Now() + kStep, [this, index] { Step(index); });
}

bool RouterSim::Advance(Attempt* attempt, SequenceDelta* delta) {
  const SequenceSpec& spec = *attempt->start.spec;
  const int64_t prompt_end = static_cast<int64_t>(spec.prompt_ids().size());
  if (attempt->next_prompt > 0 && attempt->next_prompt < prompt_end) {
    delta->prompt_begin = attempt->next_prompt;
    delta->prompt_count = std::min(kPromptChunk, prompt_end - attempt->next_prompt);
    for (int64_t i = 0; i < delta->prompt_count; ++i) {
      const int64_t p = delta->prompt_begin + i;
      delta->prompt_logprobs.raw += Bits(spec.prompt_ids()[static_cast<size_t>(p)], p);
    }
    attempt->next_prompt += delta->prompt_count;
    return true;
  }
  std::vector<uint32_t>& outputs = attempt->outputs;
  const auto is_over = [&] {
    return static_cast<int64_t>(outputs.size()) >= spec.max_new_tokens ||
           (!outputs.empty() && Stops(outputs.back()));
  };
  const bool over = is_over();
  if (!over && attempt->credit <= 0) return false;
  delta->token_begin = attempt->next_output;
  if (Chance(options_.faults.position_repeated)) {
    delta->token_begin -= std::min<int64_t>(delta->token_begin, 2);
  }
  if (!over) {
    outputs.push_back(NextToken(spec, outputs));
    --attempt->credit;
  }
  for (int64_t p = delta->token_begin; p < static_cast<int64_t>(outputs.size()); ++p) {
    delta->token_ids += IdBytes(outputs[static_cast<size_t>(p)]);
    delta->logprobs.raw += Bits(outputs[static_cast<size_t>(p)], p);
  }
  attempt->next_output = static_cast<int64_t>(outputs.size());
  if (is_over()) {
    delta->end =
        SequenceEnd{.reason = Stops(outputs.back()) ? EndReason::kStop : EndReason::kLength};
  }
  return true;
}

void RouterSim::SendFrame(Worker* worker, WorkerFrame frame) {
  const StreamId stream = worker->stream;
  if (stream == StreamId(0)) return;
  const bool has_end = std::any_of(frame.deltas.begin(), frame.deltas.end(),
                                   [](const SequenceDelta& d) { return d.end.has_value(); });
  const bool plain = !has_end && frame.hand_offs.empty() && frame.refusals.empty();
  if (plain && Chance(options_.faults.frame_dropped)) return;
  const int times = Chance(options_.faults.frame_repeated) ? 2 : 1;
  for (int i = 0; i < times; ++i) {
    worker->arrival = std::max(worker->arrival, clock_.Now() + Latency());
    At(worker->arrival, [this, stream, frame] { Apply([&] { core_.FrameCame(stream, frame); }); });
  }
}

void RouterSim::Dispatch() {
  const RouterActions actions = core_.TakeActions();
  if (actions.empty()) return;
  for (const GatewayDelta& item : actions.deltas) Deliver(item);
  for (const WorkerBatch& batch : actions.workers) {
    At(clock_.Now() + Latency(), [this, batch] { ToWorker(batch); });
  }
  for (const AdmitRequest& used : actions.used) {
    reserved_[used.used_ticket] = granted_ahead_.at(used.used_ticket);
  }
  for (const base::TicketId ticket : actions.released_tickets) {
    const auto it = received_tickets_.find(ticket);
    if (it == received_tickets_.end()) {
      Problem(absl::StrCat("ticket ", ticket.value(), " released, never granted"));
    } else if (++it->second > 1) {
      Problem(absl::StrCat("ticket ", ticket.value(), " released twice"));
    }
    reserved_.erase(ticket);
  }
  if (!scheduler_up_) return;
  for (const uint64_t handle : actions.withdrawn_handles) {
    std::erase_if(queue_, [&](const AdmitRequest& request) { return request.handle == handle; });
  }
  queue_.insert(queue_.end(), actions.admits.begin(), actions.admits.end());
  At(clock_.Now() + Latency(), [this] { GrantQueued(); });
}

// Streams are not ordered with each other, but a batch is: the first one of a stream is always the
// first to come, since later batches only follow what the worker answered or arrive as credit.
void RouterSim::ToWorker(const WorkerBatch& batch) {
  const auto it = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.key == batch.worker && worker.alive;
  });
  if (it == workers_.end()) {
    // Nobody listens there any longer.
    return Apply([&] { core_.StreamClosed(batch.stream, absl::UnavailableError("refused")); });
  }
  if (it->stream < batch.stream) {
    it->stream = batch.stream;
    it->attempts.clear();
  }
  if (it->stream != batch.stream) return;
  for (const WorkerStart& start : batch.starts) {
    if (Chance(options_.faults.start_refused) || it->draining) {
      WorkerFrame frame;
      frame.refusals.push_back({start.ticket.id, absl::FailedPreconditionError("stale")});
      SendFrame(&*it, std::move(frame));
      continue;
    }
    Attempt attempt;
    attempt.start = start;
    if (start.generated_ids != nullptr) attempt.outputs = *start.generated_ids;
    attempt.next_output = start.deliver_output_from;
    attempt.next_prompt = start.deliver_prompt_from;
    attempt.credit = start.credit_tokens;
    it->attempts[start.ticket.id] = std::move(attempt);
  }
  for (const base::TicketId ticket : batch.cancels) it->attempts.erase(ticket);
  for (const WorkerCredit& credit : batch.credits) {
    const auto attempt = it->attempts.find(credit.ticket);
    if (attempt != it->attempts.end()) attempt->second.credit += credit.tokens;
  }
}

// The gateway's side: every check of what a trainer would see.
void RouterSim::Deliver(const GatewayDelta& item) {
  const uint64_t handle = item.delta.handle;
  const auto found = samples_.find({item.gateway, handle});
  if (found == samples_.end()) return Problem(absl::StrCat("unknown handle ", handle));
  Sample& sample = found->second;
  const std::string name = sample.spec->sequence.value();
  if (sample.ended) return Problem(name + " got something after its end");
  const SequenceDelta& delta = item.delta;
  const int64_t count = static_cast<int64_t>(delta.token_ids.size() / 4);
  if (count > 0 && delta.token_begin != sample.received) {
    Problem(absl::StrCat(name, " got position ", delta.token_begin, " after ", sample.received));
  }
  for (int64_t i = 0; i < count; ++i) {
    const size_t p = static_cast<size_t>(delta.token_begin + i);
    if (p >= sample.expected.size()) return Problem(name + " is too long");
    const size_t byte = static_cast<size_t>(i) * 4;
    if (delta.token_ids.substr(byte, 4) != IdBytes(sample.expected[p]) ||
        delta.logprobs.raw.substr(byte, 4) != Bits(sample.expected[p], static_cast<int64_t>(p))) {
      Problem(absl::StrCat(name, " differs at position ", p));
    }
  }
  sample.received += count;
  if (delta.prompt_count > 0) {
    if (delta.prompt_begin != sample.prompt_next) Problem(name + " has a gap in its prompt");
    sample.prompt_next += delta.prompt_count;
  }
  if (count > 0) {
    // A reader that takes its time.
    const GatewayId gateway = item.gateway;
    At(clock_.Now() + Latency(),
       [this, gateway, handle, count] { Apply([&] { core_.AddCredit(gateway, handle, count); }); });
  }
  if (!delta.end.has_value()) return;
  sample.ended = true;
  const EndReason reason = delta.end->reason;
  if (reason == EndReason::kAbort && sample.given_up) return;
  if (reason != EndReason::kStop && reason != EndReason::kLength) {
    return Problem(absl::StrCat(name, " ended badly: ", delta.end->error.ToString()));
  }
  ++completed_;
  if (sample.received != static_cast<int64_t>(sample.expected.size())) {
    Problem(absl::StrCat(name, " has ", sample.received, " of ", sample.expected.size()));
  }
  if (sample.spec->deliver_prompt_from > 0 &&
      sample.prompt_next != static_cast<int64_t>(sample.spec->prompt_ids().size())) {
    Problem(name + " misses prompt positions");
  }
  if (Stops(sample.expected.back()) != (reason == EndReason::kStop)) {
    Problem(name + " ended for another reason than in the quiet run");
  }
}

}  // namespace lockstep::router
