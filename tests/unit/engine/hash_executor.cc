#include "tests/unit/engine/hash_executor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep::worker {
namespace {

constexpr uint64_t kRoot = 0x9E3779B97F4A7C15;

// The finaliser of SplitMix64, over two words.
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0xD1342543DE82EF95 + b + 0x632BE59BD9B4E019;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return (x ^ (x >> 31)) | 1;  // Never 0, which is poison.
}

float Unit(uint64_t bits) { return static_cast<float>(bits >> 40) / 16777216.0f; }

float Logit(uint64_t prefix, int32_t id) { return 4 * Unit(Mix(prefix, 1000 + id)); }

// Not a normalised distribution: what matters is that it depends on prefix and id alone.
float Logprob(uint64_t prefix, int32_t id) { return -1 - 8 * Unit(Mix(prefix, 5000 + id)); }

}  // namespace

HashExecutor::HashExecutor(const Options& options)
    : options_(options), slots_(size_t(options.block_count) * options.block_tokens) {}

void HashExecutor::PoisonKvBlock(int block) {
  std::fill_n(slots_.begin() + int64_t{block} * options_.block_tokens, options_.block_tokens,
              Slot{});
}

absl::StatusOr<ModeTimes> HashExecutor::TimeModes(std::span<const SequenceShape> step,
                                                  const base::Clock& /*clock*/) {
  if (!in_flight_.empty()) violations_.push_back("a shadow beside a step in flight");
  return options_.mode_times(step);
}

HashExecutor::Slot& HashExecutor::SlotAt(const StepSequence& sequence, int64_t position) {
  const int64_t block = sequence.blocks[position / options_.block_tokens];
  return slots_[block * options_.block_tokens + position % options_.block_tokens];
}

std::vector<StepSequence> HashExecutor::Resolve(std::span<const StepSequence> sequences) {
  std::vector<StepSequence> resolved(sequences.begin(), sequences.end());
  resolved_.resize(sequences.size());
  for (size_t i = 0; i < resolved.size(); ++i) {
    StepSequence& sequence = resolved[i];
    if (sequence.drawn_by < 0) continue;
    ++rows_drawn_by_;
    const size_t drawn_by = static_cast<size_t>(sequence.drawn_by);
    if (sequence.tokens.size() != 1 || in_flight_.empty() || drawn_by >= drawn_.size()) {
      violations_.push_back("a token that no step in flight draws");
      return resolved;
    }
    // What failed draws nothing; its sequence is dropped with this row.
    resolved_[i] = std::max(0, drawn_[drawn_by]);
    sequence.tokens = {&resolved_[i], 1};
  }
  return resolved;
}

absl::Status HashExecutor::Launch(std::span<const StepSequence> launched) {
  failed_ = steps_++ == options_.fails_at_step;
  if (failed_) return absl::UnavailableError("the device is lost");
  const std::vector<StepSequence> sequences = Resolve(launched);
  sequences_max_ = std::max(sequences_max_, static_cast<int64_t>(sequences.size()));
  CheckWrites(sequences);
  if (!violations_.empty()) return absl::InternalError(violations_.front());
  std::vector<std::vector<uint64_t>> prefixes;
  int64_t prefill_rows = 0;
  for (const StepSequence& sequence : sequences) {
    prefixes.push_back(Write(sequence));
    if (sequence.tokens.size() > 1) prefill_rows += static_cast<int64_t>(sequence.tokens.size());
  }
  prefill_rows_max_ = std::max(prefill_rows_max_, prefill_rows);
  std::vector<StepSequenceResult> results;
  drawn_.clear();
  for (size_t i = 0; i < sequences.size(); ++i) {
    CheckChain(sequences[i], prefixes[i]);
    results.push_back(Compute(sequences[i], prefixes[i]));
    draws_ += results.back().sampled_id >= 0;
    drawn_.push_back(results.back().sampled_id);
  }
  in_flight_.push_back(std::move(results));
  if (in_flight_.size() > kStepsInFlightMax) violations_.push_back("too many steps in flight");
  return absl::OkStatus();
}

absl::Status HashExecutor::Collect(std::vector<StepSequenceResult>* results) {
  *results = std::move(in_flight_.front());
  in_flight_.pop_front();
  return absl::OkStatus();
}

void HashExecutor::CheckWrites(std::span<const StepSequence> sequences) {
  absl::flat_hash_map<int32_t, size_t> writers;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence& sequence = sequences[i];
    const int64_t end = sequence.position + static_cast<int64_t>(sequence.tokens.size());
    const int64_t blocks = (end + options_.block_tokens - 1) / options_.block_tokens;
    if (sequence.tokens.empty() || blocks != static_cast<int64_t>(sequence.blocks.size())) {
      violations_.push_back(absl::StrFormat("%d blocks for %d tokens at position %d",
                                            sequence.blocks.size(), sequence.tokens.size(),
                                            sequence.position));
      return;
    }
    for (int64_t b = sequence.position / options_.block_tokens; b < blocks; ++b) {
      if (!writers.emplace(sequence.blocks[b], i).second) {
        violations_.push_back(absl::StrCat("two writers of block ", sequence.blocks[b]));
      }
    }
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (const int32_t block : sequences[i].blocks) {
      const auto writer = writers.find(block);
      if (writer == writers.end() || writer->second == i) continue;
      violations_.push_back(absl::StrCat("block ", block, " is written while another uses it"));
    }
  }
}

std::vector<uint64_t> HashExecutor::Write(const StepSequence& sequence) {
  uint64_t prefix = sequence.position == 0 ? kRoot : SlotAt(sequence, sequence.position - 1).prefix;
  std::vector<uint64_t> prefixes;
  for (size_t row = 0; row < sequence.tokens.size(); ++row) {
    const int32_t token = sequence.tokens[row];
    if (token < 0 || token >= options_.vocabulary) {
      violations_.push_back(absl::StrCat("token ", token, " is outside the vocabulary"));
    }
    prefix = Mix(prefix, static_cast<uint64_t>(token));
    SlotAt(sequence, sequence.position + static_cast<int64_t>(row)) = {prefix, token};
    prefixes.push_back(prefix);
  }
  return prefixes;
}

void HashExecutor::CheckChain(const StepSequence& sequence, const std::vector<uint64_t>& prefixes) {
  const int64_t end = sequence.position + static_cast<int64_t>(sequence.tokens.size());
  uint64_t prefix = kRoot;
  for (int64_t position = 0; position < end; ++position) {
    const Slot& slot = SlotAt(sequence, position);
    prefix = Mix(prefix, static_cast<uint64_t>(slot.token));
    if (slot.prefix == prefix) continue;
    violations_.push_back(absl::StrFormat("KV at position %d of a sequence at %d is not its prefix",
                                          position, sequence.position));
    return;
  }
  if (prefix != prefixes.back()) violations_.push_back("a step overwrote its own KV");
}

StepSequenceResult HashExecutor::Compute(const StepSequence& sequence,
                                         const std::vector<uint64_t>& prefixes) {
  StepSequenceResult result;
  const bool has_nan =
      std::ranges::find(sequence.tokens, options_.nan_after_id) != sequence.tokens.end();
  if (has_nan) {
    result.error = kernels::SampleError::kNonFiniteLogits;
    return result;
  }
  for (size_t i = 0; i < sequence.score_targets.size(); ++i) {
    AppendLogprobs(sequence, prefixes[sequence.score_begin + i], sequence.score_targets[i],
                   sequence.score_details, &result.scored);
  }
  if (!sequence.sample) return result;
  result.sampled_id = Draw(sequence, prefixes.back());
  if (result.sampled_id < 0) {
    result.error = kernels::SampleError::kAllBanned;
    return result;
  }
  if (sequence.logprobs) {
    AppendLogprobs(sequence, prefixes.back(), result.sampled_id, /*details=*/true, &result.sampled);
  }
  return result;
}

int32_t HashExecutor::Draw(const StepSequence& sequence, uint64_t prefix) const {
  const kernels::SamplingRow& row = sequence.sampling;
  std::vector<float> scores(options_.vocabulary);
  for (int32_t id = 0; id < options_.vocabulary; ++id) scores[id] = Logit(prefix, id);
  for (const kernels::IdBias& bias : sequence.biases) scores[bias.id] += bias.value;
  std::vector<kernels::IdCount> counts(sequence.counts.begin(), sequence.counts.end());
  if (sequence.counts_drawn) {
    const int32_t id = sequence.tokens.back();
    auto found = std::ranges::find(counts, id, &kernels::IdCount::id);
    if (found == counts.end()) found = counts.insert(found, {.id = id});
    ++found->output_count;
  }
  for (const kernels::IdCount& count : counts) {
    if (count.output_count > 0 || count.in_prompt > 0) scores[count.id] /= row.repetition_penalty;
    scores[count.id] -= row.frequency_penalty * static_cast<float>(count.output_count);
    if (count.output_count > 0) scores[count.id] -= row.presence_penalty;
  }
  const uint64_t position =
      options_.keys_noise_by_step ? static_cast<uint64_t>(steps_) : row.position;
  int32_t best = -1;
  for (int32_t id = 0; id < options_.vocabulary; ++id) {
    if (row.temperature > 0) {
      scores[id] += row.temperature * 4 * Unit(Mix(Mix(row.sub_seed, position), id));
    }
    if (scores[id] < -1e30f) continue;
    if (best < 0 || scores[id] > scores[best]) best = id;
  }
  return best;
}

void HashExecutor::AppendLogprobs(const StepSequence& sequence, uint64_t prefix, int32_t target,
                                  bool details, LogprobBlock* block) const {
  block->raw.push_back(Logprob(prefix, target));
  block->scaled.push_back(Logprob(prefix, target) / (sequence.temperature + 1));
  if (!details) return;
  if (sequence.entropy) block->entropy.push_back(Unit(Mix(prefix, 77)));
  for (const int32_t id : sequence.chosen_ids) {
    block->chosen_logprobs.push_back(Logprob(prefix, id));
  }
  std::vector<int32_t> ids(options_.vocabulary);
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, std::ranges::greater{},
                           [&](int32_t id) { return Logprob(prefix, id); });
  for (int i = 0; i < sequence.top_count; ++i) {
    block->top_ids.push_back(ids[i]);
    block->top_logprobs.push_back(Logprob(prefix, ids[i]));
  }
}

}  // namespace lockstep::worker
