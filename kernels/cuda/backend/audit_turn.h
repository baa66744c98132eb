#pragma once

#include <cstdint>

namespace lockstep::kernels::cuda {

// Picks the call of each step that is audited: all of them in turn, in a scattered order.
class AuditTurn {
 public:
  // A step, or the capture of one, begins.
  void Begin() {
    if (calls_ > 0) calls_before_ = calls_;
    calls_ = 0;
    // Multiples of the golden ratio are spread evenly over however many calls there are.
    const uint64_t spread = ++steps_ * 0x9E3779B97F4A7C15 >> 32;
    chosen_ = static_cast<int>(spread * static_cast<uint64_t>(calls_before_) >> 32);
  }
  // Once for each call, in order.
  bool IsNext() { return calls_++ == chosen_; }

 private:
  uint64_t steps_ = 0;
  int calls_ = 0;
  int calls_before_ = 1;  // Of the step before.
  int chosen_ = 0;
};

}  // namespace lockstep::kernels::cuda
