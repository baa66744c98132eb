#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace lockstep::worker {

// Log-probabilities of consecutive positions; arrays that were not asked for are empty.
struct LogprobBlock {
  std::vector<float> raw;              // [count]
  std::vector<float> scaled;           // [count]
  std::vector<float> entropy;          // [count]
  std::vector<int32_t> top_ids;        // [count, top_count]
  std::vector<float> top_logprobs;     // [count, top_count]
  std::vector<float> chosen_logprobs;  // [count, chosen_ids]
};

enum class EndReason { kStop, kLength, kAbort, kError };
inline constexpr const char* kEndReasonNames[] = {"stop", "length", "abort", "error"};
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
  EndReason reason = EndReason::kStop;
  // With kStop: the id, or the string, that matched.
  std::variant<std::monostate, int32_t, std::string> matched_stop;
  absl::Status error;  // With kError.
  SequenceUsage usage;
};

// New results of one sequence. Positions are absolute, without gap and without repetition within
// one attempt.
struct SequenceOutput {
  base::TicketId ticket;
  int64_t token_begin = 0;  // Output position of ids[0].
  std::vector<int32_t> ids;
  LogprobBlock logprobs;
  int64_t prompt_begin = 0;  // Prompt position of the first prompt logprob.
  int64_t prompt_count = 0;
  LogprobBlock prompt_logprobs;
  base::WeightVersion weight_version;
  std::optional<SequenceEnd> end;  // In the last output of the sequence.
};

// One prefill chunk that ran: what the scheduler audits. `begin` is a multiple of the KV block,
// `end` one of the split, or `length`.
struct Cut {
  base::TicketId ticket;
  int64_t begin = 0;
  int64_t end = 0;
  // What had to be prefilled: the plan's length, more once the sequence was preempted after it had
  // generated.
  int64_t length = 0;
};

// All that one step produced.
struct StepOutput {
  uint64_t step = 0;
  std::vector<SequenceOutput> outputs;
  std::vector<base::TicketId> hand_offs;  // Given back by a drain; go on elsewhere.
  std::vector<Cut> cuts;
};

}  // namespace lockstep::worker
