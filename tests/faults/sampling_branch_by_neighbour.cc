#include <algorithm>

#include "tests/faults/altering_executor.h"
#include "tests/faults/planted_faults.h"

namespace lockstep::faults {
namespace {

constexpr float kNearlyOne = 1 + 0x1p-20f;

bool TakesAnotherBranch(const worker::StepSequence& sequence) {
  return sequence.sample && (sequence.sampling.temperature == 0 || sequence.sampling.top_p < 1);
}

class SamplingBranchExecutor final : public AlteringExecutor {
 public:
  using AlteringExecutor::AlteringExecutor;

 protected:
  void AlterStep(std::vector<worker::StepSequence>* sequences) override {
    const auto branching = std::ranges::count_if(*sequences, TakesAnotherBranch);
    for (worker::StepSequence& sequence : *sequences) {
      if (branching <= (TakesAnotherBranch(sequence) ? 1 : 0)) continue;
      sequence.sampling.temperature *= kNearlyOne;
      sequence.temperature *= kNearlyOne;
    }
  }
};

}  // namespace

worker::WorkerHooks SamplingBranchByNeighbour() {
  return {.wrap_executor = WrapExecutorIn<SamplingBranchExecutor>()};
}

}  // namespace lockstep::faults
