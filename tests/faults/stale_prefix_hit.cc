#include <memory>
#include <utility>
#include <vector>

#include "tests/faults/altering_executor.h"
#include "tests/faults/planted_faults.h"

namespace lockstep::faults {
namespace {

class StalePrefixExecutor final : public AlteringExecutor {
 public:
  StalePrefixExecutor(std::unique_ptr<worker::StepExecutor> inner, int split_kv_size)
      : AlteringExecutor(std::move(inner)), split_kv_size_(split_kv_size) {}

 protected:
  void AlterStep(std::vector<worker::StepSequence>* sequences) override {
    // Spans point into the inner vectors, which keep their memory while the outer one grows.
    tables_.clear();
    for (worker::StepSequence& sequence : *sequences) {
      if (!StartsBehindCachedPrefix(sequence)) continue;
      tables_.emplace_back(sequence.blocks.begin(), sequence.blocks.end());
      // Both are read only: the step writes behind the prefix.
      tables_.back()[0] = tables_.back()[1];
      sequence.blocks = tables_.back();
    }
  }

 private:
  // Chunks start at splits, and decoding runs one token: what starts elsewhere with more follows a
  // hit.
  bool StartsBehindCachedPrefix(const worker::StepSequence& sequence) const {
    return sequence.tokens.size() > 1 && sequence.position >= 2 * kv_block_tokens() &&
           sequence.position % split_kv_size_ != 0;
  }

  const int split_kv_size_;
  std::vector<std::vector<int32_t>> tables_;
};

}  // namespace

worker::WorkerHooks StalePrefixHit(int split_kv_size) {
  return {.wrap_executor = WrapExecutorIn<StalePrefixExecutor>(split_kv_size)};
}

}  // namespace lockstep::faults
