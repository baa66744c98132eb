#include "services/worker/model/null_executor.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/hash.h"

namespace lockstep::worker {
namespace {

uint64_t HashOf(int64_t value, uint64_t seed) {
  return base::Hash64({reinterpret_cast<const char*>(&value), sizeof(value)}, seed);
}

// In [0, 1).
float Unit(uint64_t hash) { return static_cast<float>(hash >> 40) * 0x1p-24f; }

float RawLogprob(int32_t id, int64_t position) {
  return -8 * Unit(HashOf(position, static_cast<uint64_t>(id)));
}

bool IsBanned(std::span<const kernels::IdBias> biases, int32_t id) {
  return std::any_of(biases.begin(), biases.end(), [id](const kernels::IdBias& bias) {
    return bias.id == id && bias.value == -std::numeric_limits<float>::infinity();
  });
}

}  // namespace

absl::Status NullExecutor::Launch(std::span<const StepSequence> sequences) {
  std::vector<StepSequenceResult> results(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence& sequence = sequences[i];
    StepSequenceResult* result = &results[i];
    int64_t position = sequence.position + sequence.score_begin + 1;
    for (const int32_t target : sequence.score_targets) {
      AppendLogprobs(sequence, target, position++, sequence.score_details, &result->scored);
    }
    if (sequence.sample) Draw(sequence, result);
  }
  in_flight_.push_back(std::move(results));
  return absl::OkStatus();
}

absl::Status NullExecutor::Collect(std::vector<StepSequenceResult>* results) {
  *results = std::move(in_flight_.front());
  in_flight_.pop_front();
  return absl::OkStatus();
}

void NullExecutor::Draw(const StepSequence& sequence, StepSequenceResult* result) const {
  const int64_t position = sequence.sampling.position;
  const uint64_t seed = sequence.sampling.temperature == 0 ? 0 : sequence.sampling.sub_seed;
  const uint64_t vocabulary = static_cast<uint64_t>(options_.vocabulary);
  const uint64_t first = HashOf(position, seed) % vocabulary;
  for (uint64_t step = 0; step < vocabulary; ++step) {
    const auto id = static_cast<int32_t>((first + step) % vocabulary);
    if (IsBanned(sequence.biases, id)) continue;
    result->sampled_id = id;
    if (sequence.logprobs) AppendLogprobs(sequence, id, position, true, &result->sampled);
    return;
  }
  result->error = kernels::SampleError::kAllBanned;
}

void NullExecutor::AppendLogprobs(const StepSequence& sequence, int32_t id, int64_t position,
                                  bool details, LogprobBlock* block) const {
  const float raw = RawLogprob(id, position);
  block->raw.push_back(raw);
  block->scaled.push_back(sequence.temperature == 0 ? raw : raw / sequence.temperature);
  if (!details) return;
  if (sequence.entropy) block->entropy.push_back(8 * Unit(HashOf(position, 1)));
  // Some ids of this position in the order of their logprobs; the whole vocabulary is not searched.
  std::vector<int32_t> top(static_cast<size_t>(sequence.top_count));
  for (size_t i = 0; i < top.size(); ++i) {
    top[i] = static_cast<int32_t>((HashOf(position, 0) + i) %
                                  static_cast<uint64_t>(options_.vocabulary));
  }
  std::sort(top.begin(), top.end(), [position](int32_t a, int32_t b) {
    return RawLogprob(a, position) > RawLogprob(b, position);
  });
  for (const int32_t top_id : top) {
    block->top_ids.push_back(top_id);
    block->top_logprobs.push_back(RawLogprob(top_id, position));
  }
  for (const int32_t chosen : sequence.chosen_ids) {
    block->chosen_logprobs.push_back(RawLogprob(chosen, position));
  }
}

}  // namespace lockstep::worker
