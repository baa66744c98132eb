#include <cstdint>

#include "tests/faults/altering_executor.h"
#include "tests/faults/planted_faults.h"

namespace lockstep::faults {
namespace {

class NoiseByStepExecutor final : public AlteringExecutor {
 public:
  using AlteringExecutor::AlteringExecutor;

 protected:
  void AlterStep(std::vector<worker::StepSequence>* sequences) override {
    ++step_;
    for (worker::StepSequence& sequence : *sequences) sequence.sampling.position = step_;
  }

 private:
  int64_t step_ = 0;
};

}  // namespace

worker::WorkerHooks NoiseKeyedByStep() {
  return {.wrap_executor = WrapExecutorIn<NoiseByStepExecutor>()};
}

}  // namespace lockstep::faults
