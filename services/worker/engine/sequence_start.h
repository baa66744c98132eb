#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace lockstep::worker {

struct IdLogitBias {
  int32_t id = 0;
  float bias = 0;  // -infinity bans the id.
};

// Parameters of one sequence after defaults; ranges as in proto SamplingParams, StopOptions and
// LogprobOptions. The shell has checked them, EngineLoop checks ids and lengths again.
struct SequenceParameters {
  float temperature = 1;
  int32_t top_k = 0;  // 0 is off.
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<IdLogitBias> logit_bias;

  int64_t max_new_tokens = 0;
  int64_t min_new_tokens = 0;
  std::vector<int32_t> stop_ids;  // End-of-sequence ids included, unless ignored.
  std::vector<std::string> stop_strings;
  bool skip_special_tokens = true;  // Their text is not there for stop strings to match.

  bool logprobs = true;
  int32_t top_count = 0;
  std::vector<int32_t> chosen_ids;
  bool entropy = false;
  bool prompt_details = false;
};

// Where prefill may be cut: at every multiple of split_kv_size below length, and at length.
struct ChunkPlan {
  int64_t split_kv_size = 0;
  int64_t length = 0;  // Prompt and already generated tokens.
};

// One attempt of one sequence, as a ticket admits it.
struct SequenceStart {
  base::TicketId ticket;
  base::SequenceId sequence;
  base::RequestId request;
  std::string trace_id;
  int64_t attempt = 0;
  base::Epoch ticket_epoch;  // Of the grant.
  base::Epoch entry_epoch;   // When the request entered the cluster: what abort-all compares.
  ChunkPlan plan;

  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> generated_ids;
  SequenceParameters parameters;
  uint64_t sub_seed = 0;
  int64_t deliver_output_from = 0;  // In [0, generated_ids]; positions below were delivered before.
  int64_t deliver_prompt_from = 0;  // 0: no prompt logprobs.
  std::string cache_namespace;
  bool disable_prefix_cache = false;
  bool score_only = false;

  int64_t credit_tokens = 0;  // Output tokens that may be delivered before AddCredit.
  absl::Time deadline = absl::InfiniteFuture();
};

}  // namespace lockstep::worker
