#pragma once

#include <cstdint>

namespace lockstep::kernels {

// A value for one vocabulary id of one row: a logit bias, or a ban when value is -infinity. An id
// that is listed twice gets both, in list order.
struct IdBias {
  int32_t id = 0;
  float value = 0;
};

// How often an id occurred before the token that is drawn now, for the penalties. Each id once. An
// entry with a negative id counts nothing.
struct IdCount {
  int32_t id = 0;
  int32_t output_count = 0;  // Among generated tokens.
  int32_t in_prompt = 0;     // 1 when the prompt holds it.
};

// Sampling of one row, and nothing of its neighbours. Order of application: bias and bans ->
// repetition, frequency, presence penalties -> temperature -> top-k -> top-p -> min-p -> Gumbel
// noise. Ties go to the lower id everywhere.
struct SamplingRow {
  uint64_t sub_seed = 0;
  int64_t position = 0;   // Absolute index of the token being drawn, < 2^32: keys the noise.
  float temperature = 1;  // 0 is greedy: no filters, no noise.
  int32_t top_k = 0;      // 0 is off.
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1]
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t bias_begin = 0;  // This row's part of SampleArgs::biases.
  int32_t bias_end = 0;
  int32_t count_begin = 0;  // This row's part of SampleArgs::counts.
  int32_t count_end = 0;
  int32_t drawn_slot = -1;  // Where CountDrawn finds one more output token; -1: nowhere.
};

// Adds to the counts what the step before has drawn and only the device knows. For each row with a
// drawn_slot, drawn_ids[drawn_slot] is counted once more among its outputs. The last of the row's
// counts has a negative id, and becomes that of an id that the others do not have.
struct CountDrawnArgs {
  int rows = 0;
  const SamplingRow* row_params = nullptr;  // [rows]
  const int32_t* drawn_ids = nullptr;  // A negative one, of a draw that failed, is not counted.
  IdCount* counts = nullptr;
};

enum class SampleError : int32_t {
  kNone = 0,
  kNonFiniteLogits = 1,  // NaN or +infinity in the row: the request fails, the neighbours do not.
  kAllBanned = 2,        // Bias and bans left no id to draw.
};

// logits: [rows, vocabulary] fp32, not changed. Ids >= vocabulary_sampled are never drawn.
struct SampleArgs {
  int rows = 0;
  int vocabulary = 0;
  int vocabulary_sampled = 0;
  const float* logits = nullptr;
  const SamplingRow* row_params = nullptr;  // [rows]
  const IdBias* biases = nullptr;
  const IdCount* counts = nullptr;
  int32_t* ids = nullptr;         // [rows] out; -1 on error.
  SampleError* errors = nullptr;  // [rows] out
};

inline constexpr int kTopLogprobsMax = 64;

// Log-probabilities of one row of logits; the one op for greedy, sampled, prefill and score.
inline constexpr int32_t kTargetNone = -1;
inline constexpr int32_t kTargetDrawn = -2;

struct LogprobRow {
  int32_t target_id = 0;  // kTargetNone, or kTargetDrawn: what drawn_ids says of the row.
  float temperature = 1;  // For the scaled values; 0 counts as 1, because greedy has no scale.
  int32_t top_count = 0;  // 0..kTopLogprobsMax, of raw logprobs, descending, ties to the lower id.
  int32_t chosen_begin = 0;  // This row's part of LogprobArgs::chosen_ids.
  int32_t chosen_end = 0;
  int32_t want_scaled = 1;
  int32_t want_entropy = 0;
};

// raw = log_softmax(logits), scaled = log_softmax(logits / T), both over the whole vocabulary,
// before bias, penalties and filters; never above 0, clamped to the lowest finite fp32. A row with
// NaN or +infinity gets an error and the lowest finite fp32 in all its results. Output arrays that
// no row asks for may be null.
struct LogprobArgs {
  int rows = 0;
  int vocabulary = 0;
  const float* logits = nullptr;           // [rows, vocabulary]
  const LogprobRow* row_params = nullptr;  // [rows]
  const int32_t* drawn_ids = nullptr;      // [rows] For kTargetDrawn; a negative id is none.
  const int32_t* chosen_ids = nullptr;
  float* raw = nullptr;              // [rows], of target_id; 0 when none is wanted.
  float* scaled = nullptr;           // [rows], of target_id at the row's temperature.
  float* entropy = nullptr;          // [rows], of the raw distribution, in nats.
  int32_t* top_ids = nullptr;        // [rows, kTopLogprobsMax]; -1 beyond top_count.
  float* top_logprobs = nullptr;     // [rows, kTopLogprobsMax]
  float* chosen_logprobs = nullptr;  // Parallel to chosen_ids, raw.
  SampleError* errors = nullptr;     // [rows] out: kNone or kNonFiniteLogits.
};

}  // namespace lockstep::kernels
