#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"

// What the router's core says and hears: the messages of router.proto, scheduler.proto and
// worker.proto as plain values, so that the core runs without a wire.
namespace lockstep::router {

// One gateway's stream.
using GatewayId = base::StrongId<struct GatewayIdTag, uint64_t>;
// One stream to one worker; counted up with each stream that the core asks for.
using StreamId = base::StrongId<struct StreamIdTag, uint64_t>;

// One life of one worker.
struct WorkerKey {
  base::WorkerId id;
  base::Incarnation incarnation;
  friend auto operator<=>(const WorkerKey&, const WorkerKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const WorkerKey& key) {
    return H::combine(std::move(h), key.id, key.incarnation);
  }
};

// What the router needs to know of a sequence. Never changes after the open.
struct SequenceSpec {
  base::SequenceId sequence;
  base::RequestId request;
  std::string trace_id;  // Empty unless the client sent one.
  // Samples of one prompt share it. Never null.
  std::shared_ptr<const std::vector<uint32_t>> prompt =
      std::make_shared<const std::vector<uint32_t>>();
  std::vector<uint32_t> generated_ids;  // Given with the request.
  int64_t max_new_tokens = 0;           // Counts generated_ids.
  int64_t deliver_output_from = 0;      // In [0, generated_ids].
  int64_t deliver_prompt_from = 0;      // In [0, prompt]; 0: no prompt logprobs.
  std::string cache_namespace;
  bool disable_prefix_cache = false;
  std::string routing_key;
  std::string group_id;
  int64_t group_size = 1;
  base::Epoch entry_epoch;
  // Everything else, as the shell wrote it and will read it: opaque to the core.
  std::string body;

  const std::vector<uint32_t>& prompt_ids() const { return *prompt; }
};

// A gateway's wish to run a sequence.
struct OpenSequence {
  uint64_t handle = 0;  // Unique on the gateway's stream.
  std::shared_ptr<const SequenceSpec> spec;
  absl::Duration time_left = absl::InfiniteDuration();
  int64_t credit_tokens = 0;
  int64_t retry_budget = 0;
};

struct ChunkPlan {
  int64_t split_kv_size = 0;
  int64_t length = 0;
};

// The scheduler's permission to run one attempt of one sequence on one worker.
struct Ticket {
  base::TicketId id;
  WorkerKey worker;
  int64_t attempt = 0;
  base::Epoch epoch;
  ChunkPlan plan;
  absl::Duration expires;
};

// Arrays of little-endian numbers over consecutive positions, as workers send them. An array that
// was not asked for is empty.
struct LogprobBytes {
  std::string raw;
  std::string scaled;
  std::string entropy;
  std::string top_ids;
  std::string top_logprobs;
  std::string chosen_logprobs;
};

enum class EndReason { kStop, kLength, kAbort, kError, kPartial };
inline constexpr const char* kEndReasonNames[] = {"stop", "length", "abort", "error", "partial"};
inline const char* EndReasonName(EndReason reason) {
  return kEndReasonNames[static_cast<size_t>(reason)];
}

struct SequenceUsage {
  int64_t cached_tokens = 0;
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t preemptions = 0;
};

struct SequenceEnd {
  EndReason reason = EndReason::kAbort;
  std::variant<std::monostate, int64_t, std::string> matched_stop;
  absl::Status error;  // With kError.
  SequenceUsage usage;
  std::string worker_id;
  int64_t resumptions = 0;
};

// New results of one sequence, by absolute position.
struct SequenceDelta {
  uint64_t handle = 0;  // From workers: the ticket. To gateways: the gateway's own.
  int64_t token_begin = 0;
  std::string token_ids;  // u32[count]
  LogprobBytes logprobs;
  int64_t prompt_begin = 0;
  int64_t prompt_count = 0;
  LogprobBytes prompt_logprobs;
  int64_t weight_version = 0;
  std::string weights_digest;
  std::optional<SequenceEnd> end;
};

struct WorkerRefusal {
  base::TicketId ticket;
  absl::Status error;
};

// All that one message of a worker brings.
struct WorkerFrame {
  std::vector<SequenceDelta> deltas;  // Handles are ticket ids.
  std::vector<WorkerRefusal> refusals;
  std::vector<base::TicketId> hand_offs;
};

struct WorkerState {
  WorkerKey worker;
  std::string address;
  int64_t running_sequences = 0;  // Of all routers.
  bool draining = false;
  absl::Duration lease;
};

}  // namespace lockstep::router
