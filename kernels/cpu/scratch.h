#pragma once

#include <cstdlib>
#include <vector>

#include "common/base/check.h"
#include "kernels/api/buffer.h"

namespace lockstep::kernels::cpu {

// Aligned memory, or a Buffer of 0 bytes when the machine has none left.
inline Buffer AllocateAligned(size_t bytes) {
  constexpr size_t kAlignment = 256;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  return memory == nullptr ? Buffer() : Buffer(memory, bytes, std::free);
}

// Working memory of the ops: one slot per thread and one that all threads share. Grows to the
// largest op seen and stays, so that a step in steady state allocates nothing. Contents do not
// survive an op. A slot belongs to its thread while an op runs.
class Scratch {
 public:
  explicit Scratch(int threads) : slots_(static_cast<size_t>(threads)) {}

  template <typename T>
  T* OfThread(int thread, size_t count) {
    return static_cast<T*>(Grow(slots_[static_cast<size_t>(thread)], count * sizeof(T)));
  }
  template <typename T>
  T* Shared(size_t count) {
    return static_cast<T*>(Grow(shared_, count * sizeof(T)));
  }

 private:
  static void* Grow(Buffer& slot, size_t bytes) {
    if (slot.bytes() < bytes) {
      slot = Buffer();
      slot = AllocateAligned(bytes);
      LOCKSTEP_CHECK(slot.bytes() == bytes) << "no memory for " << bytes << " bytes of scratch";
    }
    return slot.as<void>();
  }

  std::vector<Buffer> slots_;
  Buffer shared_;
};

}  // namespace lockstep::kernels::cpu
