#include "tests/unit/model/step_driver.h"

#include <algorithm>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "services/worker/engine/penalty_counts.h"
#include "tests/support/bitwise.h"
#include "tests/support/philox_data.h"

namespace lockstep::testing {
namespace {

using worker::LogprobBlock;
using worker::StepExecutor;
using worker::StepSequence;
using worker::StepSequenceResult;

template <typename T>
void Append(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

void Append(const LogprobBlock& from, LogprobBlock* to) {
  Append(from.raw, &to->raw);
  Append(from.scaled, &to->scaled);
  Append(from.entropy, &to->entropy);
  Append(from.top_ids, &to->top_ids);
  Append(from.top_logprobs, &to->top_logprobs);
  Append(from.chosen_logprobs, &to->chosen_logprobs);
}

// Company for one step: sequences of other lengths and parameters, all at position 0 and with
// blocks of their own.
class Neighbours {
 public:
  Neighbours(const Schedule& schedule, uint32_t step) {
    tokens_.reserve(schedule.neighbours);
    for (int i = 0; i < schedule.neighbours; ++i) {
      const uint32_t word = PhiloxWord(step, static_cast<uint64_t>(i));
      const int rows = schedule.neighbours_decode ? 1 : 1 + static_cast<int>(word % 9);
      tokens_.push_back(RandomIds(word, rows, 256));
      StepSequence& neighbour = sequences_.emplace_back();
      neighbour.tokens = tokens_.back();
      neighbour.blocks =
          std::span<const int32_t>(schedule.neighbour_blocks).subspan(2 * size_t(i), 2);
      neighbour.sample = schedule.neighbours_decode || word % 3 != 0;
      neighbour.logprobs = word % 2 == 0;
      neighbour.sampling = {.sub_seed = word,
                            .position = static_cast<int64_t>(neighbour.tokens.size()),
                            .temperature = static_cast<float>(word % 4) * 0.5f,
                            .top_k = static_cast<int32_t>(word % 5)};
      neighbour.temperature = neighbour.sampling.temperature;
    }
  }
  const std::vector<StepSequence>& sequences() const { return sequences_; }

 private:
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<StepSequence> sequences_;
};

// Where our sequence stands among its neighbours.
size_t IndexIn(const Schedule& schedule) { return static_cast<size_t>(schedule.neighbours) / 2; }

void LaunchStep(StepExecutor* executor, const StepSequence& own, const Schedule& schedule,
                uint32_t step, Trace* trace) {
  for (const int32_t block : schedule.poisoned) executor->PoisonKvBlock(block);
  const Neighbours neighbours(schedule, step);
  std::vector<StepSequence> sequences = neighbours.sequences();
  sequences.insert(sequences.begin() + static_cast<ptrdiff_t>(IndexIn(schedule)), own);
  int rows = 0;
  for (const StepSequence& sequence : sequences) rows += static_cast<int>(sequence.tokens.size());
  trace->rows_step_max = std::max(trace->rows_step_max, rows);
  trace->sequences_step_max =
      std::max(trace->sequences_step_max, static_cast<int>(sequences.size()));
  const absl::Status status = executor->Launch(sequences);
  LOCKSTEP_CHECK(status.ok()) << status.ToString();
}

StepSequenceResult CollectStep(StepExecutor* executor, const Schedule& schedule) {
  std::vector<StepSequenceResult> results;
  const absl::Status status = executor->Collect(&results);
  LOCKSTEP_CHECK(status.ok()) << status.ToString();
  LOCKSTEP_CHECK_EQ(results.size(), static_cast<size_t>(schedule.neighbours) + 1);
  const StepSequenceResult& own = results[IndexIn(schedule)];
  LOCKSTEP_CHECK(own.error == kernels::SampleError::kNone);
  return own;
}

StepSequence Describe(const DrivenSequence& sequence, const Schedule& schedule) {
  StepSequence step;
  step.blocks = schedule.blocks;
  step.sampling = sequence.sampling;
  step.temperature = sequence.sampling.temperature;
  step.top_count = sequence.top_count;
  step.chosen_ids = sequence.chosen_ids;
  step.entropy = true;
  step.score_details = true;
  return step;
}

std::string DifferenceOf(const std::string& name, const std::vector<float>& actual,
                         const std::vector<float>& expected) {
  const ::testing::AssertionResult equal = BitwiseEqual(actual, expected);
  return equal ? "" : absl::StrCat(name, ": ", equal.message());
}

}  // namespace

DrivenSequence Sampled(int prompt_tokens, int new_tokens, int vocabulary) {
  DrivenSequence sequence;
  sequence.prompt = RandomIds(11, prompt_tokens, vocabulary);
  sequence.new_tokens = new_tokens;
  sequence.sampling = {.sub_seed = 0x9E3779B97F4A7C15, .temperature = 0.8f, .top_p = 0.95f};
  return sequence;
}

DrivenSequence Penalised(DrivenSequence sequence) {
  sequence.sampling.repetition_penalty = 1.3f;
  sequence.sampling.frequency_penalty = 0.7f;
  sequence.sampling.presence_penalty = 0.4f;
  return sequence;
}

Trace Drive(StepExecutor* executor, const DrivenSequence& sequence, const Schedule& schedule) {
  static constexpr int32_t kUnknownId = -1;
  Trace trace;
  worker::SequenceParameters parameters;
  parameters.repetition_penalty = sequence.sampling.repetition_penalty;
  parameters.frequency_penalty = sequence.sampling.frequency_penalty;
  parameters.presence_penalty = sequence.sampling.presence_penalty;
  worker::PenaltyCounts penalties(parameters, sequence.prompt);
  std::vector<int32_t> tokens = sequence.prompt;
  const int prompt_length = static_cast<int>(tokens.size());
  std::vector<int> ends = schedule.cuts;
  ends.push_back(prompt_length);
  std::deque<bool> sampled;  // Of the steps in flight, oldest first.
  const auto collect = [&] {
    const StepSequenceResult result = CollectStep(executor, schedule);
    Append(result.scored, &trace.scored);
    Append(result.sampled, &trace.drawn);
    if (sampled.front()) {
      trace.ids.push_back(result.sampled_id);
      tokens.push_back(result.sampled_id);
      penalties.Add(result.sampled_id);
    }
    sampled.pop_front();
  };
  uint32_t step = 1;
  int begin = 0;
  const int last = prompt_length + sequence.new_tokens - 1;
  while (begin < last) {
    const int end = begin < prompt_length ? ends[step - 1] : begin + 1;
    StepSequence own = Describe(sequence, schedule);
    if (begin < static_cast<int>(tokens.size())) {
      own.tokens = std::span<const int32_t>(tokens).subspan(begin, end - begin);
    } else {
      own.tokens = {&kUnknownId, 1};
      own.drawn_by = static_cast<int>(IndexIn(schedule));
    }
    own.position = begin;
    const int scored = std::min(end, prompt_length - 1) - begin;
    if (scored > 0) {
      own.score_targets = std::span<const int32_t>(tokens).subspan(begin + 1, scored);
    }
    own.sample = end >= prompt_length;
    own.sampling.position = end;
    own.counts = penalties.counts();
    own.counts_drawn = own.drawn_by >= 0 && penalties.enabled();
    LaunchStep(executor, own, schedule, step++, &trace);
    sampled.push_back(own.sample);
    if (sampled.size() > (schedule.ahead ? 1 : 0)) collect();
    begin = end;
  }
  while (!sampled.empty()) collect();
  return trace;
}

LogprobBlock Score(StepExecutor* executor, const DrivenSequence& sequence,
                   const std::vector<int32_t>& answer, const Schedule& schedule) {
  std::vector<int32_t> tokens = sequence.prompt;
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  StepSequence own = Describe(sequence, schedule);
  own.tokens = std::span<const int32_t>(tokens).first(tokens.size() - 1);
  own.score_targets = std::span<const int32_t>(tokens).subspan(1);
  Trace trace;
  LaunchStep(executor, own, schedule, 0, &trace);
  return CollectStep(executor, schedule).scored;
}

std::string DifferenceOf(const LogprobBlock& actual, const LogprobBlock& expected) {
  std::string text = DifferenceOf("raw", actual.raw, expected.raw);
  if (text.empty()) text = DifferenceOf("scaled", actual.scaled, expected.scaled);
  if (text.empty()) text = DifferenceOf("entropy", actual.entropy, expected.entropy);
  if (text.empty() && actual.top_ids != expected.top_ids) text = "top ids";
  if (text.empty()) text = DifferenceOf("top", actual.top_logprobs, expected.top_logprobs);
  if (text.empty()) text = DifferenceOf("chosen", actual.chosen_logprobs, expected.chosen_logprobs);
  return text;
}

std::string DifferenceOf(const Trace& actual, const Trace& expected) {
  if (actual.ids != expected.ids) {
    const auto differing = std::mismatch(actual.ids.begin(), actual.ids.end(), expected.ids.begin(),
                                         expected.ids.end());
    return absl::StrCat("ids differ first at ", differing.first - actual.ids.begin());
  }
  std::string text = DifferenceOf(actual.drawn, expected.drawn);
  if (!text.empty()) return absl::StrCat("drawn ", text);
  text = DifferenceOf(actual.scored, expected.scored);
  return text.empty() ? "" : absl::StrCat("scored ", text);
}

Schedule BesideDrawing(Schedule schedule, int neighbours, int first_block) {
  schedule.neighbours = neighbours;
  schedule.neighbours_decode = true;
  schedule.neighbour_blocks = Blocks(first_block, 1, 2 * neighbours);
  return schedule;
}

std::vector<int32_t> Blocks(int first, int step, int count) {
  std::vector<int32_t> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back(first + i * step);
  return blocks;
}

std::vector<int32_t> RandomIds(uint32_t seed, int count, int vocabulary) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>(PhiloxWord(seed, static_cast<uint64_t>(i)) %
                                       static_cast<uint32_t>(vocabulary)));
  }
  return ids;
}

}  // namespace lockstep::testing
