#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "services/worker/engine/step_executor.h"
#include "services/worker/engine/step_output.h"
#include "services/worker/model/model_factory.h"

namespace lockstep::testing {

// One sequence to run by hand, as the engine would: prefill, then draw `new_tokens`. Every
// prompt position is scored, with top logprobs, chosen ids and entropy.
struct DrivenSequence {
  std::vector<int32_t> prompt;
  int new_tokens = 0;
  kernels::SamplingRow sampling;
  int top_count = 3;
  std::vector<int32_t> chosen_ids = {0, 7};
};

// A random prompt that goes on at a temperature, with top-p.
DrivenSequence Sampled(int prompt_tokens, int new_tokens, int vocabulary);
// The same with all penalties on.
DrivenSequence Penalised(DrivenSequence sequence);

// How it is run: all that must not show in the bits.
struct Schedule {
  std::vector<int> cuts;          // Prefill steps end at these prompt positions, and at the end.
  std::vector<int32_t> blocks;    // KV blocks to use, in order.
  std::vector<int32_t> poisoned;  // KV blocks to fill with NaN before each step.
  int neighbours = 0;             // Other sequences in every step, half of them in front.
  std::vector<int32_t> neighbour_blocks;  // Two for each neighbour.
  bool neighbours_decode = false;         // Each has one row and draws from it.
  bool ahead = false;  // Each step is launched before the one before it is collected.
};

// The same beside neighbours that draw too, whose blocks begin at `first_block`.
Schedule BesideDrawing(Schedule schedule, int neighbours, int first_block);

// All that it gave.
struct Trace {
  std::vector<int32_t> ids;
  worker::LogprobBlock drawn;
  worker::LogprobBlock scored;
  int rows_step_max = 0;
  int sequences_step_max = 0;
};

Trace Drive(worker::StepExecutor* executor, const DrivenSequence& sequence,
            const Schedule& schedule);

// Logprobs of all tokens of prompt and answer but the first, scored in one step without drawing.
worker::LogprobBlock Score(worker::StepExecutor* executor, const DrivenSequence& sequence,
                           const std::vector<int32_t>& answer, const Schedule& schedule);

// Ids and every logprob array, bit by bit. Empty when they are equal, else what differs first.
std::string DifferenceOf(const Trace& actual, const Trace& expected);
std::string DifferenceOf(const worker::LogprobBlock& actual, const worker::LogprobBlock& expected);

// first, first + step, ... : `count` block numbers.
std::vector<int32_t> Blocks(int first, int step, int count);

// `count` ids below `vocabulary`, a function of the seed.
std::vector<int32_t> RandomIds(uint32_t seed, int count, int vocabulary);

}  // namespace lockstep::testing
