#include <cmath>
#include <limits>

#include "tests/faults/altering_executor.h"
#include "tests/faults/planted_faults.h"

namespace lockstep::faults {
namespace {

class LogprobByPathExecutor final : public AlteringExecutor {
 public:
  using AlteringExecutor::AlteringExecutor;

 protected:
  void AlterResults(std::vector<worker::StepSequenceResult>* results) override {
    constexpr float kDown = std::numeric_limits<float>::lowest();
    for (worker::StepSequenceResult& result : *results) {
      for (float& logprob : result.scored.raw) logprob = std::nextafter(logprob, kDown);
      for (float& logprob : result.scored.scaled) logprob = std::nextafter(logprob, kDown);
    }
  }
};

}  // namespace

worker::WorkerHooks LogprobKernelByPath() {
  return {.wrap_executor = WrapExecutorIn<LogprobByPathExecutor>()};
}

}  // namespace lockstep::faults
