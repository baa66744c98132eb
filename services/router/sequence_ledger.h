#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "services/router/delivery_log.h"
#include "services/router/sequence_types.h"

namespace lockstep::router {

// Where a sequence is. It ends by leaving the ledger.
//
//   kWaiting ──candidates──> kAdmitting ──ticket──> kRunning ──end──> (gone)
//      ^  ^                       │                    │
//      │  └────── no ticket ──────┘                    │
//      └────────────── attempt lost ───────────────────┘
enum class SequenceState {
  kWaiting,    // For a worker, for the scheduler, or for retry_at.
  kAdmitting,  // The scheduler has been asked.
  kRunning,    // Started on ticket->worker.
};

// All that the router keeps of one sequence: enough to go on elsewhere at any time.
struct SequenceRecord {
  SequenceRecord(uint64_t id_in, GatewayId gateway_in, OpenSequence open, absl::Time now);

  const uint64_t id;  // Ascending in order of arrival.
  const GatewayId gateway;
  const uint64_t handle;
  const std::shared_ptr<const SequenceSpec> spec;
  const absl::Time opened_at;
  const absl::Time deadline;  // A margin before the gateway's.
  const int64_t retry_budget;

  uint64_t affinity_key = 0;
  uint64_t prefix_hash = 0;
  DeliveryLog log;
  int64_t credit_granted;  // Since the open.

  SequenceState state = SequenceState::kWaiting;
  absl::Time retry_at = absl::InfinitePast();  // Not to be asked for before.
  std::vector<WorkerKey> candidates;           // With kAdmitting.
  uint64_t admit_handle = 0;                   // With kAdmitting.
  absl::Time asked_at = absl::InfinitePast();  // With kAdmitting.
  std::optional<Ticket> ticket;                // With kRunning.

  base::Epoch entry_epoch;  // Of the first ticket, or as the gateway says; 0 before.
  int64_t attempt = 0;      // Of the newest ticket.
  int64_t retries_left;     // Until something new is delivered.
  absl::Duration back_off = absl::ZeroDuration();
  int64_t resumptions = 0;
  SequenceUsage usage;  // Of attempts that ended.
  // Workers that ended with this sequence on them since it last made progress, and those of which
  // only the stream is known to be lost.
  int64_t workers_ended = 0;
  std::vector<WorkerKey> streams_lost;

  int64_t credit_left() const {
    return credit_granted - (log.delivered_outputs() - spec->deliver_output_from);
  }
  // It got somewhere and now waits for its client to read: no worker computes a new token for it.
  bool held() const { return credit_left() <= 0 && log.delivered_outputs() > 0; }
};

// Owns the records and finds them by every name that events use. Not thread-safe.
class SequenceLedger {
 public:
  // Null when the gateway uses the handle already.
  SequenceRecord* Open(GatewayId gateway, OpenSequence open, absl::Time now);
  // Ends the record; its ticket and admission handle must have been given up.
  void Close(SequenceRecord* record);

  // All of these: null when there is none.
  SequenceRecord* FindById(uint64_t id);
  SequenceRecord* FindByHandle(GatewayId gateway, uint64_t handle);
  SequenceRecord* FindByAdmission(uint64_t admit_handle);
  SequenceRecord* FindByTicket(base::TicketId ticket);

  // State changes; each leaves the former state's name behind.
  void SetWaiting(SequenceRecord* record, absl::Time retry_at);
  // Draws a new admission handle.
  void SetAdmitting(SequenceRecord* record, std::vector<WorkerKey> candidates);
  void SetRunning(SequenceRecord* record, Ticket ticket);

  // In order of arrival.
  std::vector<SequenceRecord*> All();
  std::vector<SequenceRecord*> InState(SequenceState state);
  std::vector<SequenceRecord*> RunningOn(const WorkerKey& worker);
  std::vector<SequenceRecord*> OfGateway(GatewayId gateway);
  // Waiting records whose retry_at has come, and records whose deadline has.
  std::vector<SequenceRecord*> DueForRetry(absl::Time now);
  std::vector<SequenceRecord*> PastDeadline(absl::Time now);
  // The next of these times.
  absl::Time next_retry() const;
  absl::Time next_deadline() const;

  size_t size() const { return records_.size(); }
  // Bytes of what the open sequences were opened with: ids and parameters. Samples of a prompt
  // count it once.
  int64_t spec_bytes() const { return spec_bytes_; }
  // What the sequence would add to them.
  int64_t BytesToAdd(const SequenceSpec& spec) const;
  size_t admitting_count() const { return by_admission_.size(); }

 private:
  void LeaveState(SequenceRecord* record);

  uint64_t last_id_ = 0;
  uint64_t last_admit_handle_ = 0;
  int64_t spec_bytes_ = 0;
  absl::flat_hash_map<const std::vector<uint32_t>*, int64_t> prompt_uses_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<SequenceRecord>> records_;
  absl::flat_hash_map<std::pair<GatewayId, uint64_t>, SequenceRecord*> by_handle_;
  absl::flat_hash_map<uint64_t, SequenceRecord*> by_admission_;
  absl::flat_hash_map<base::TicketId, SequenceRecord*> by_ticket_;
  // Waiting records in the order in which they may be asked for, then in order of arrival.
  std::set<std::pair<absl::Time, uint64_t>> waiting_;
  std::set<std::pair<absl::Time, uint64_t>> deadlines_;
};

}  // namespace lockstep::router
