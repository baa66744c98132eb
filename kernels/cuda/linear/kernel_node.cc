#include "kernels/cuda/linear/kernel_node.h"

#include <cuda.h>

#include <map>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {
namespace {

// The runtime does not know the functions of modules that a library loaded by itself, the driver
// does. Its entries are looked up, so that a binary starts where there is no driver.
template <typename Function>
absl::StatusOr<Function> DriverEntry(const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found), name));
  if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the driver has no ", name));
  }
  return reinterpret_cast<Function>(entry);
}

absl::Status StatusOfDriver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": driver error ", static_cast<int>(result)));
}

std::string Describe(const KernelNode& node) {
  return absl::StrCat(node.name, " of ", node.grid[0], "x", node.grid[1], "x", node.grid[2],
                      " CTAs");
}

}  // namespace

absl::StatusOr<std::vector<KernelNode>> KernelsOf(cudaGraph_t graph) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const auto get_parameters,
      DriverEntry<decltype(&cuGraphKernelNodeGetParams)>("cuGraphKernelNodeGetParams", 12000));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto function_name,
                            DriverEntry<decltype(&cuFuncGetName)>("cuFuncGetName", 12030));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto kernel_name,
                            DriverEntry<decltype(&cuKernelGetName)>("cuKernelGetName", 12030));
  size_t count = 0;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaGraphGetNodes(graph, nullptr, &count), "graph nodes"));
  std::vector<cudaGraphNode_t> nodes(count);
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaGraphGetNodes(graph, nodes.data(), &count), "graph nodes"));
  std::vector<KernelNode> kernels;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaGraphNodeGetType(node, &type), "graph node type"));
    if (type != cudaGraphNodeTypeKernel) continue;
    CUDA_KERNEL_NODE_PARAMS parameters = {};
    LOCKSTEP_RETURN_IF_ERROR(StatusOfDriver(get_parameters(node, &parameters), "kernel node"));
    const char* name = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(StatusOfDriver(parameters.func != nullptr
                                                ? function_name(&name, parameters.func)
                                                : kernel_name(&name, parameters.kern),
                                            "kernel name"));
    kernels.push_back({.name = name,
                       .grid = {parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ},
                       .block = {parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ},
                       .shared_bytes = parameters.sharedMemBytes});
  }
  return kernels;
}

bool IsForeign(const KernelNode& node) {
  return node.name.find("8lockstep7kernels4cuda") == std::string::npos;
}

absl::Status CheckForeignKernels(std::span<const KernelNode> captured,
                                 std::span<const KernelNode> expected) {
  std::map<KernelNode, int> missing;
  for (const KernelNode& node : expected) {
    if (IsForeign(node)) ++missing[node];
  }
  for (const KernelNode& node : captured) {
    if (!IsForeign(node)) continue;
    const auto found = missing.find(node);
    if (found == missing.end() || found->second == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the graph runs ", Describe(node), ", which no certificate names"));
    }
    --found->second;
  }
  for (const auto& [node, count] : missing) {
    if (count > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the graph lacks ", Describe(node), ", which its certificate names"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::kernels::cuda
