#include "kernels/cuda/linear/timed_graph.h"

#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {
namespace {

struct GraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};

}  // namespace

absl::StatusOr<TimedGraph> TimedGraph::Capture(int turns, const Turn& turn, cudaStream_t stream) {
  TimedGraph timed;
  timed.turns_ = turns;
  timed.stream_ = stream;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of capture"));
  absl::Status enqueued;
  for (int i = 0; i < turns && enqueued.ok(); ++i) enqueued = turn(i, stream);
  cudaGraph_t captured = nullptr;
  // Ends the capture also when a turn failed.
  const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
  const std::unique_ptr<CUgraph_st, GraphDeleter> graph(captured);
  LOCKSTEP_RETURN_IF_ERROR(enqueued);
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(ended, "end of capture"));
  LOCKSTEP_ASSIGN_OR_RETURN(timed.kernels_, KernelsOf(captured));
  cudaGraphExec_t exec = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaGraphInstantiate(&exec, captured, 0), "graph instantiation"));
  timed.exec_.reset(exec);
  LOCKSTEP_ASSIGN_OR_RETURN(timed.begin_, CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(timed.end_, CreateEvent());
  return timed;
}

absl::StatusOr<double> TimedGraph::Replay() {
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaEventRecord(begin_.get(), stream_), "event"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaGraphLaunch(exec_.get(), stream_), "graph launch"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaEventRecord(end_.get(), stream_), "event"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaEventSynchronize(end_.get()), "timed graph"));
  float milliseconds = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "event"));
  return static_cast<double>(milliseconds) * 1000 / turns_;
}

}  // namespace lockstep::kernels::cuda
