// Linear layers at the sizes of prefill: FLOP/s, to compare with onednn_bench.cc in the same run.
#include "bench/kernels/bench_support.h"
#include "benchmark/benchmark.h"

namespace lockstep::bench {
namespace {

void LinearAt(benchmark::State& state, kernels::DType dtype, int segments) {
  const int rows = static_cast<int>(state.range(0));
  const int inputs = static_cast<int>(state.range(1));
  const int outputs = static_cast<int>(state.range(2));
  const auto kernels = MakeKernels();
  const auto& weight = SharedWeight(*kernels, outputs, inputs, dtype, segments);
  const auto x = testing::UniformData(2, static_cast<size_t>(rows * inputs));
  std::vector<float> y(static_cast<size_t>(rows * outputs));
  for (auto _ : state) {
    kernels->Linear({.weight = &weight,
                     .rows = rows,
                     .x = x.data(),
                     .x_stride = static_cast<size_t>(inputs),
                     .y = y.data(),
                     .y_stride = static_cast<size_t>(outputs)});
  }
  state.counters["flops"] = benchmark::Counter(2.0 * rows * inputs * outputs,
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void LinearF32(benchmark::State& state) { LinearAt(state, kernels::DType::kF32, 1); }
void LinearBf16(benchmark::State& state) { LinearAt(state, kernels::DType::kBf16, 1); }
void LinearBf16Segments8(benchmark::State& state) { LinearAt(state, kernels::DType::kBf16, 8); }

// {rows, inputs, outputs}
BENCHMARK(LinearF32)
    ->Args({256, 4096, 4096})
    ->Args({256, 1024, 2048})
    ->Args({256, 2048, 1024})
    ->Args({32, 1024, 2048})
    ->UseRealTime();
BENCHMARK(LinearBf16)->Args({256, 4096, 4096})->Args({256, 1024, 2048})->UseRealTime();
BENCHMARK(LinearBf16Segments8)->Args({256, 4096, 4096})->UseRealTime();

}  // namespace
}  // namespace lockstep::bench
