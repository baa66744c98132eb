#pragma once

#include <cstdint>

namespace lockstep::worker {

// The end of the next prefill chunk of a sequence that has `computed` of `length` tokens: the
// largest allowed cut (a multiple of split, or length) that needs at most `budget` tokens. Equal to
// `computed` when no cut is within the budget: the sequence waits.
struct CutRequest {
  int64_t computed = 0;
  int64_t length = 0;
  int64_t split = 0;
  int64_t budget = 0;
};
int64_t NextCut(const CutRequest& request);

// Fills one step: each sequence, oldest first, takes what it may run of two budgets, rows of
// sequences and tokens of prefill. Decode rows use no prefill tokens. Example, with split 2048 and
// chunk_tokens 8192, two prompts of 6000:
//   step 1: Take(0, 6000) == 6000, Take(0, 6000) == 2048;  step 2: Take(2048, 6000) == 3952.
class StepPlanner {
 public:
  struct Limits {
    int64_t split_kv_size = 0;
    int64_t chunk_tokens = 0;  // A multiple of split_kv_size, so that a whole budget always moves.
    int64_t sequences_max = 0;
  };
  explicit StepPlanner(const Limits& limits) : limits_(limits) { BeginStep(); }

  void BeginStep();
  // Tokens that a sequence would run, 0 if it waits: `computed` of its tokens are done, below
  // `prefill_length` it prefills, from there on it decodes one token. Takes nothing.
  int64_t Offer(int64_t computed, int64_t prefill_length) const;
  // As Offer, and takes it from the budgets.
  int64_t Take(int64_t computed, int64_t prefill_length);
  bool full() const { return sequences_left_ == 0; }

 private:
  const Limits limits_;
  int64_t sequences_left_ = 0;
  int64_t tokens_left_ = 0;
};

}  // namespace lockstep::worker
