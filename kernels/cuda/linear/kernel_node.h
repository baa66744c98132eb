#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::kernels::cuda {

// A kernel of a captured graph, by what tells it from others.
struct KernelNode {
  std::string name;  // Mangled.
  std::array<unsigned, 3> grid = {};
  std::array<unsigned, 3> block = {};
  unsigned shared_bytes = 0;

  friend bool operator==(const KernelNode&, const KernelNode&) = default;
  friend auto operator<=>(const KernelNode&, const KernelNode&) = default;
};

// All kernels of a graph, in the order of its nodes.
absl::StatusOr<std::vector<KernelNode>> KernelsOf(cudaGraph_t graph);

// FAILED_PRECONDITION, naming the kernel, unless the graph's kernels that are not our own are
// exactly `expected`, each as often as it stands there. Ours have this namespace in their name.
absl::Status CheckForeignKernels(std::span<const KernelNode> captured,
                                 std::span<const KernelNode> expected);

bool IsForeign(const KernelNode& node);

}  // namespace lockstep::kernels::cuda
