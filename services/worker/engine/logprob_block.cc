#include "services/worker/engine/logprob_block.h"

#include <cstring>
#include <vector>

#include "common/base/check.h"

namespace lockstep::worker {
namespace {

// The width of an array, its values a position, follows from its size.
template <typename T>
void AppendArray(const std::vector<T>& from, const LogprobRange& range, std::vector<T>* to) {
  if (from.empty()) return;
  const int64_t width = static_cast<int64_t>(from.size()) / range.count;
  LOCKSTEP_CHECK_EQ(width * range.count, static_cast<int64_t>(from.size()));
  to->insert(to->end(), from.begin() + range.begin * width, from.begin() + range.end * width);
}

template <typename T>
bool SameArray(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace

bool SameBits(const LogprobBlock& a, const LogprobBlock& b) {
  return SameArray(a.raw, b.raw) && SameArray(a.scaled, b.scaled) &&
         SameArray(a.entropy, b.entropy) && SameArray(a.top_ids, b.top_ids) &&
         SameArray(a.top_logprobs, b.top_logprobs) &&
         SameArray(a.chosen_logprobs, b.chosen_logprobs);
}

void AppendLogprobs(const LogprobBlock& from, const LogprobRange& range, LogprobBlock* to) {
  if (range.begin == range.end) return;
  AppendArray(from.raw, range, &to->raw);
  AppendArray(from.scaled, range, &to->scaled);
  AppendArray(from.entropy, range, &to->entropy);
  AppendArray(from.top_ids, range, &to->top_ids);
  AppendArray(from.top_logprobs, range, &to->top_logprobs);
  AppendArray(from.chosen_logprobs, range, &to->chosen_logprobs);
}

void DropDetails(LogprobBlock* block) {
  block->entropy.clear();
  block->top_ids.clear();
  block->top_logprobs.clear();
  block->chosen_logprobs.clear();
}

void DropTokenLogprobs(LogprobBlock* block) {
  block->raw.clear();
  block->scaled.clear();
}

}  // namespace lockstep::worker
