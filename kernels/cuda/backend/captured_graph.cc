#include "kernels/cuda/backend/captured_graph.h"

#include <utility>

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {
namespace {

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};

}  // namespace

absl::StatusOr<std::unique_ptr<CapturedGraph>> CapturedGraph::Create(
    cudaStream_t stream, const std::function<void()>& enqueue) {
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture"));
  enqueue();
  cudaGraph_t captured = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream, &captured);
  const std::unique_ptr<CUgraph_st, GraphDeleter> graph(captured);
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(error, "capture"));
  auto result = std::make_unique<CapturedGraph>(Private());
  LOCKSTEP_ASSIGN_OR_RETURN(result->kernels_, KernelsOf(graph.get()));
  cudaGraphExec_t exec = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaGraphInstantiate(&exec, graph.get(), 0), "instantiating a graph"));
  result->exec_.reset(exec);
  return result;
}

cudaError_t CapturedGraph::Launch(cudaStream_t stream) const {
  return cudaGraphLaunch(exec_.get(), stream);
}

}  // namespace lockstep::kernels::cuda
