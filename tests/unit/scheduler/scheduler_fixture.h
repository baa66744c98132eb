#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "services/scheduler/scheduler_core.h"

// What tests of the scheduler's core share: a store in memory, small workers, small requests.
namespace lockstep::scheduler {

class MemoryStore final : public StateStore {
 public:
  std::optional<PersistentState> Load() const override { return state; }
  absl::Status Save(const PersistentState& next) override {
    if (!fail.ok()) return fail;
    state = next;
    return absl::OkStatus();
  }
  std::optional<PersistentState> state;
  absl::Status fail;
};

inline WorkerName NameOf(const std::string& id, uint64_t incarnation = 1) {
  return {.id = base::WorkerId(id), .incarnation = base::Incarnation(incarnation)};
}

inline Contract ContractOf(const std::string& model = "m1") {
  return {.fields = {{"backend", "cpu"}, {"model_digest", model}},
          .weight_version = base::WeightVersion(1),
          .weights_digest = "w1"};
}

// 100 blocks of 16 tokens, split 64, context 1600.
inline WorkerRegistration RegistrationOf(const std::string& id, uint64_t incarnation = 1) {
  return {.name = NameOf(id, incarnation),
          .address = absl::StrCat(id, ":1"),
          .capacity = {.kv_blocks = 100,
                       .kv_block_tokens = 16,
                       .sequences_max = 64,
                       .context_tokens_max = 1600,
                       .chunk_tokens = 128},
          .split_kv_size = 64,
          .contract = ContractOf()};
}

inline const RouterStream kStream{1};

class SchedulerCoreTest : public ::testing::Test {
 protected:
  SchedulerCoreTest() { Restart(); }

  // A new scheduler on the same state file; what was decided before is lost.
  void Restart() { core_ = *SchedulerCore::Create(options_, &clock_, &store_); }

  void Join(const std::string& id, uint64_t incarnation = 1) {
    ASSERT_TRUE(core_->Register(RegistrationOf(id, incarnation)).ok());
    AnswerCalls(NameOf(id, incarnation));
  }
  // Moves time in small steps, as the ticker does. `alive` workers send heartbeats meanwhile.
  void Pass(absl::Duration duration, const std::vector<WorkerName>& alive = {}) {
    const absl::Time end = clock_.Now() + duration;
    while (clock_.Now() < end) {
      clock_.Advance(absl::Milliseconds(100));
      for (const WorkerName& name : alive) {
        int64_t free = 100;
        for (const HeldTicket& ticket : held_[name]) free -= ticket.kv_blocks;
        (void)core_->Heartbeat(
            {.name = name, .idle = true, .kv_blocks_free = free, .held = held_[name]});
      }
      core_->Tick();
      if (!answering_) continue;
      for (const WorkerName& name : alive) AnswerCalls(name);
    }
  }
  AdmissionRequest Request(const std::string& sequence, const std::vector<std::string>& candidates,
                           int64_t prompt = 160, int64_t new_tokens = 16) {
    AdmissionRequest request{.stream = kStream,
                             .handle = ++handles_,
                             .sequence = base::SequenceId(sequence),
                             .request = base::RequestId(sequence),
                             .group = sequence,
                             .demand = {.length = prompt,
                                        .prompt_tokens = prompt,
                                        .new_tokens_max = new_tokens,
                                        .prefix_hash = handles_},
                             .entry_epoch = core_->state().epoch,
                             .deadline = clock_.Now() + absl::Seconds(60)};
    for (const std::string& id : candidates) request.candidates.push_back(NameOf(id));
    return request;
  }
  // Admits one request and returns its outcome, if there is one at once.
  std::optional<absl::StatusOr<Ticket>> Admit(AdmissionRequest request) {
    const uint64_t handle = request.handle;
    core_->Admit({std::move(request)});
    return OutcomeOf(handle);
  }
  // Moves decisions into `all_` and looks for the handle's outcome.
  std::optional<absl::StatusOr<Ticket>> OutcomeOf(uint64_t handle) {
    Collect();
    for (const AdmitOutcome& outcome : all_.outcomes) {
      if (outcome.handle == handle) return outcome.ticket;
    }
    return std::nullopt;
  }
  void Collect() {
    Decisions next = core_->TakeDecisions();
    const auto append = [](auto& to, auto& from) {
      for (auto& item : from) to.push_back(std::move(item));
    };
    append(all_.outcomes, next.outcomes);
    append(all_.advance, next.advance);
    append(all_.lost, next.lost);
    append(all_.calls, next.calls);
    append(all_.finished, next.finished);
    append(all_.violations, next.violations);
  }
  std::optional<OperationResult> ResultOf(OperationId id) {
    Collect();
    for (const OperationResult& result : all_.finished) {
      if (result.operation == id) return result;
    }
    return std::nullopt;
  }
  // Answers every call that was decided and not answered yet.
  void AnswerCalls(const ControlReply& reply = {}) {
    Collect();
    for (const ControlCall& call : std::exchange(all_.calls, {})) {
      core_->OnControlReply(call.operation, call.worker, reply);
    }
  }
  void AnswerCalls(const WorkerName& worker) {
    Collect();
    std::vector<ControlCall> others;
    for (ControlCall& call : std::exchange(all_.calls, {})) {
      if (call.worker == worker) {
        core_->OnControlReply(call.operation, call.worker, ControlReply{});
      } else {
        others.push_back(std::move(call));
      }
    }
    all_.calls = std::move(others);
  }
  void Hold(const Ticket& ticket, int64_t kv_blocks) {
    held_[ticket.worker].push_back({.ticket = ticket.id,
                                    .sequence = ticket.sequence,
                                    .attempt = ticket.attempt,
                                    .kv_blocks = kv_blocks});
  }

  base::SimClock clock_;
  MemoryStore store_;
  SchedulerCore::Options options_;
  std::unique_ptr<SchedulerCore> core_;
  bool answering_ = true;  // Living workers answer commands while time passes.
  Decisions all_;
  std::map<WorkerName, std::vector<HeldTicket>> held_;
  uint64_t handles_ = 0;
};

}  // namespace lockstep::scheduler
