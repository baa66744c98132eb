#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"

// Values that the scheduler's core and its shell exchange. They mirror proto/lockstep/v1; the core
// includes no generated header, so that it runs in a simulation.
namespace lockstep::scheduler {

// One life of one worker.
struct WorkerName {
  base::WorkerId id;
  base::Incarnation incarnation;
  friend auto operator<=>(const WorkerName&, const WorkerName&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const WorkerName& name) {
    return H::combine(std::move(h), name.id, name.incarnation);
  }
};

struct WorkerCapacity {
  int64_t kv_blocks = 0;
  int64_t kv_block_tokens = 0;
  int64_t sequences_max = 0;       // In one step.
  int64_t context_tokens_max = 0;  // Prompt plus generated tokens of one sequence.
  int64_t chunk_tokens = 0;        // Prefill tokens a step.
};

struct ContractField {
  std::string name;
  std::string value;
  friend bool operator==(const ContractField&, const ContractField&) = default;
};

// What every worker of the cluster must have in common: each field of the contract fingerprint by
// name, and the weights.
struct Contract {
  std::vector<ContractField> fields;
  base::WeightVersion weight_version;
  std::string weights_digest;
  friend bool operator==(const Contract&, const Contract&) = default;
};

// A ticket that a worker says it holds.
struct HeldTicket {
  base::TicketId ticket;
  base::SequenceId sequence;
  int64_t attempt = 0;
  int64_t kv_blocks = 0;  // In use now.
};

struct WorkerRegistration {
  WorkerName name;
  std::string address;          // host:port as routers reach it.
  std::string metrics_address;  // host:port of its metrics; empty if it serves none.
  WorkerCapacity capacity;
  int64_t split_kv_size = 0;  // Tokens; what plans are made of.
  Contract contract;
  std::vector<HeldTicket> held;
};

// One prefill chunk that a worker ran: positions [begin, end) of `length` tokens to prefill. Length
// 0 was not told.
struct Cut {
  base::TicketId ticket;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length = 0;
};

struct WorkerReport {
  WorkerName name;
  uint64_t steps = 0;  // Of the engine loop since its start.
  bool idle = false;   // No progress is expected.
  int64_t kv_blocks_free = 0;
  std::vector<HeldTicket> held;
  std::vector<Cut> cuts;
  std::vector<base::TicketId> ended;
};

// Names one Admit stream of one router.
using RouterStream = base::StrongId<struct RouterStreamTag, uint64_t>;

// What a sequence asks of a worker's KV; all in tokens.
struct Demand {
  int64_t length = 0;          // Prompt and already generated.
  int64_t prompt_tokens = 0;   // Of length.
  int64_t new_tokens_max = 0;  // Still to generate.
  uint64_t prefix_hash = 0;    // Of the whole prompt: samples of a group share its blocks.
};

struct AdmissionRequest {
  RouterStream stream;
  uint64_t handle = 0;  // Unique on the stream.
  base::SequenceId sequence;
  base::RequestId request;
  std::string trace_id;  // Empty unless the client sent one.
  std::string group;
  int64_t attempt = 0;  // Attempts so far.
  Demand demand;
  std::vector<WorkerName> candidates;  // Best first.
  base::Epoch entry_epoch;             // When the request entered the cluster; 0 is now.
  absl::Time deadline = absl::InfiniteFuture();
  base::TicketId used_ticket;  // Of a report: the advance ticket that the sequence runs with.
};

// Where prefill may be cut: at every multiple of split_kv_size below length, and at length.
struct ChunkPlan {
  int64_t split_kv_size = 0;
  int64_t length = 0;
  friend bool operator==(const ChunkPlan&, const ChunkPlan&) = default;
};

struct Ticket {
  base::TicketId id;
  WorkerName worker;
  base::SequenceId sequence;
  int64_t attempt = 0;
  base::Epoch epoch;  // Of the grant; a worker that knows a newer one refuses.
  ChunkPlan plan;
  absl::Duration expires_after;  // The worker must have got it by then.
};

enum class PauseMode { kWait, kAbort, kKeep };

}  // namespace lockstep::scheduler
