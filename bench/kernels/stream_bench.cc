// Decode streams every weight once: bytes of weights read per second, beside the bytes that memcpy
// copies per second with as many threads over as much memory (it reads and writes each).
#include <cstring>
#include <thread>

#include "bench/kernels/bench_support.h"
#include "benchmark/benchmark.h"
#include "kernels/cpu/thread_pool.h"

namespace lockstep::bench {
namespace {

constexpr int kInputs = 4096;
constexpr int kOutputs = 8192;

void DecodeAt(benchmark::State& state, kernels::DType dtype) {
  const int rows = static_cast<int>(state.range(0));
  const auto kernels = MakeKernels();
  const auto& weight = SharedWeight(*kernels, kOutputs, kInputs, dtype);
  const auto x = testing::UniformData(2, static_cast<size_t>(rows) * kInputs);
  std::vector<float> y(static_cast<size_t>(rows) * kOutputs);
  for (auto _ : state) {
    kernels->Linear({.weight = &weight,
                     .rows = rows,
                     .x = x.data(),
                     .x_stride = kInputs,
                     .y = y.data(),
                     .y_stride = kOutputs});
  }
  state.counters["weight_bytes"] = benchmark::Counter(
      static_cast<double>(weight.bytes()), benchmark::Counter::kIsIterationInvariantRate);
}

void DecodeF32(benchmark::State& state) { DecodeAt(state, kernels::DType::kF32); }
void DecodeBf16(benchmark::State& state) { DecodeAt(state, kernels::DType::kBf16); }

void Memcpy(benchmark::State& state) {
  const size_t bytes = static_cast<size_t>(kInputs) * kOutputs * sizeof(float);
  kernels::cpu::ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<char> from(bytes, 1), to(bytes, 2);
  for (auto _ : state) {
    pool.ParallelFor(static_cast<int64_t>(bytes), 1, [&](int64_t begin, int64_t end, int) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
  }
  state.counters["copied_bytes"] =
      benchmark::Counter(static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(DecodeF32)->Arg(1)->Arg(4)->UseRealTime();
BENCHMARK(DecodeBf16)->Arg(1)->Arg(4)->UseRealTime();
BENCHMARK(Memcpy)->UseRealTime();

}  // namespace
}  // namespace lockstep::bench
