// oneDNN's fp32 matrix product with weights packed as it likes, on as many threads as we use.
#include "bench/kernels/bench_support.h"
#include "benchmark/benchmark.h"
#include "dnnl.hpp"

namespace lockstep::bench {
namespace {

void OneDnnF32(benchmark::State& state) {
  using dnnl::memory;
  const memory::dim rows = state.range(0), inputs = state.range(1), outputs = state.range(2);
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto f32 = memory::data_type::f32;
  const auto any = memory::format_tag::any;
  const auto ab = memory::format_tag::ab;
  const dnnl::matmul::primitive_desc description(
      dnnl::matmul::desc(memory::desc({rows, inputs}, f32, ab),
                         memory::desc({inputs, outputs}, f32, any),
                         memory::desc({rows, outputs}, f32, ab)),
      engine);
  memory x(description.src_desc(), engine);
  memory w(description.weights_desc(), engine);
  memory y(description.dst_desc(), engine);
  const auto values = testing::UniformData(2, static_cast<size_t>(rows * inputs));
  std::copy(values.begin(), values.end(), static_cast<float*>(x.get_data_handle()));
  std::fill_n(static_cast<float*>(w.get_data_handle()), w.get_desc().get_size() / 4, 0.5f);
  const dnnl::matmul product(description);
  for (auto _ : state) {
    product.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
    stream.wait();
  }
  state.counters["flops"] = benchmark::Counter(2.0 * static_cast<double>(rows * inputs * outputs),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(OneDnnF32)
    ->Args({256, 4096, 4096})
    ->Args({256, 1024, 2048})
    ->Args({256, 2048, 1024})
    ->Args({32, 1024, 2048})
    ->UseRealTime();

}  // namespace
}  // namespace lockstep::bench
