#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "tests/faults/altering_executor.h"
#include "tests/faults/planted_faults.h"

namespace lockstep::faults {
namespace {

class ResumeOffByOneExecutor final : public AlteringExecutor {
 public:
  using AlteringExecutor::AlteringExecutor;

 protected:
  void AlterStep(std::vector<worker::StepSequence>* sequences) override {
    for (worker::StepSequence& sequence : *sequences) {
      // Decoding runs one token; a draw after more of them is the first since a prefill.
      if (!sequence.sample || sequence.tokens.size() == 1) continue;
      const auto [it, is_new] =
          first_drawn_.try_emplace(sequence.sampling.sub_seed, sequence.sampling.position);
      it->second = std::min(it->second, sequence.sampling.position);
      if (sequence.sampling.position > it->second) ++sequence.sampling.position;
    }
  }

 private:
  std::unordered_map<uint64_t, int64_t> first_drawn_;  // Position, by sub-seed.
};

}  // namespace

worker::WorkerHooks ResumeOffByOne() {
  return {.wrap_executor = WrapExecutorIn<ResumeOffByOneExecutor>()};
}

}  // namespace lockstep::faults
