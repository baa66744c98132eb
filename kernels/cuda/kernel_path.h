#pragma once

#include <cstdint>

namespace lockstep::kernels::cuda {

// Which kernels run, where an op has two kinds. No path reaches a bit: on a GPU that has both they
// give the same, and the GPU's compute capability chooses.
enum class KernelPath : uint8_t {
  kSm90,      // Hopper's own instructions: warpgroup products, bulk copies, clusters.
  kPortable,  // What every GPU since Ampere has: mma.sync, cp.async, CTAs by themselves.
};

}  // namespace lockstep::kernels::cuda
