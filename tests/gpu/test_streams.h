#pragma once

#include <functional>

#include "tests/gpu/gpu_test.h"

namespace lockstep::testing {

// A stream of a test's own; waits for its work when it ends.
class TestStream {
 public:
  TestStream() { Must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~TestStream() {
    Must(cudaStreamSynchronize(stream_));
    Must(cudaStreamDestroy(stream_));
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  cudaStream_t get() const { return stream_; }
  void Wait() const { Must(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_;
};

// Runs `enqueue` on a stream, `runs` times, each time beside another stream that keeps the device's
// memory busy, and calls `check` after each.
inline void RunBesideABusyStream(int runs, const std::function<void(cudaStream_t)>& enqueue,
                                 const std::function<void(int run)>& check) {
  const kernels::Buffer noise = DeviceBytes(size_t{512} << 20);
  const TestStream busy;
  const TestStream stream;
  for (int run = 0; run < runs; ++run) {
    for (int i = 0; i < 4; ++i) {
      Must(cudaMemsetAsync(noise.as<void>(), run, noise.bytes(), busy.get()));
    }
    enqueue(stream.get());
    stream.Wait();
    check(run);
  }
}

// Captures what `enqueue` enqueues, calls `change`, and runs the captured graph.
inline void ReplayAfter(const std::function<void(cudaStream_t)>& enqueue,
                        const std::function<void()>& change) {
  const TestStream stream;
  cudaGraph_t graph;
  Must(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  enqueue(stream.get());
  Must(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t replay;
  Must(cudaGraphInstantiate(&replay, graph, 0));
  change();
  Must(cudaDeviceSynchronize());
  Must(cudaGraphLaunch(replay, stream.get()));
  stream.Wait();
  Must(cudaGraphExecDestroy(replay));
  Must(cudaGraphDestroy(graph));
}

}  // namespace lockstep::testing
