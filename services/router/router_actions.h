#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "services/router/sequence_types.h"

namespace lockstep::router {

// Asks the scheduler for a ticket, or says whose an advance ticket is.
struct AdmitRequest {
  uint64_t handle = 0;  // Never used twice. 0 in a report.
  std::shared_ptr<const SequenceSpec> spec;
  int64_t attempt = 0;         // Of the newest ticket so far, 0 without one.
  int64_t length = 0;          // Prompt and already generated tokens.
  int64_t new_tokens_max = 0;  // Still to generate.
  uint64_t prefix_hash = 0;
  std::vector<WorkerKey> candidates;  // Best first.
  base::Epoch entry_epoch;            // 0 until the scheduler has granted a first ticket.
  absl::Duration time_left;
  base::TicketId used_ticket;  // In a report.
};

// Starts an attempt on a worker. Where generated_ids is null, those of the spec hold.
struct WorkerStart {
  Ticket ticket;
  std::shared_ptr<const SequenceSpec> spec;
  std::shared_ptr<const std::vector<uint32_t>> generated_ids;
  int64_t deliver_output_from = 0;
  int64_t deliver_prompt_from = 0;
  int64_t credit_tokens = 0;
  base::Epoch entry_epoch;
  absl::Duration time_left;
};

struct WorkerCredit {
  base::TicketId ticket;
  int64_t tokens = 0;
};

// For one stream to one worker. The first batch of a stream opens it. A worker takes starts before
// cancels before credit, so that grouping them loses no order that matters.
struct WorkerBatch {
  StreamId stream;
  WorkerKey worker;
  std::string address;
  absl::Duration lease;  // As the scheduler told it.
  std::vector<WorkerStart> starts;
  std::vector<base::TicketId> cancels;
  std::vector<WorkerCredit> credits;
};

struct GatewayDelta {
  GatewayId gateway;
  SequenceDelta delta;
};

// A sequence has got its first ticket.
struct GatewayEntry {
  GatewayId gateway;
  uint64_t handle = 0;
  base::Epoch epoch;
};

// What the core wants done, in order within each receiver. The shell sends it; nothing is owed back
// but the events that follow from it.
struct RouterActions {
  std::vector<AdmitRequest> used;  // Reports; before anything else to the scheduler.
  std::vector<AdmitRequest> admits;
  std::vector<uint64_t> withdrawn_handles;
  std::vector<base::TicketId> released_tickets;
  std::vector<WorkerBatch> workers;
  std::vector<GatewayEntry> entries;  // With the next deltas, of these actions or of later ones.
  std::vector<GatewayDelta> deltas;
  std::vector<StreamId> closed_streams;  // After their batches.

  bool empty() const {
    return used.empty() && admits.empty() && withdrawn_handles.empty() &&
           released_tickets.empty() && workers.empty() && entries.empty() && deltas.empty() &&
           closed_streams.empty();
  }
};

}  // namespace lockstep::router
