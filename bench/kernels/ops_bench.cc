// Every op of one decode step of the demo model's shape (hidden 128, 8 q and 2 KV heads of 64, ffn
// 512, vocabulary 512) over 32 rows: microseconds per call.
#include "bench/kernels/bench_support.h"
#include "benchmark/benchmark.h"

namespace lockstep::bench {
namespace {

constexpr int kRows = 32;
constexpr int kHidden = 128;
constexpr int kQHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 64;
constexpr int kFfn = 512;
constexpr int kVocabulary = 512;

void SmallLinear(benchmark::State& state) {
  const int inputs = static_cast<int>(state.range(0));
  const int outputs = static_cast<int>(state.range(1));
  const int rows = static_cast<int>(state.range(2));
  const auto kernels = MakeKernels();
  const auto& weight = SharedWeight(*kernels, outputs, inputs, kernels::DType::kBf16);
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
}
BENCHMARK(SmallLinear)
    ->Args({kHidden, (kQHeads + 2 * kKvHeads) * kHeadDim, kRows})
    ->Args({kQHeads * kHeadDim, kHidden, kRows})
    ->Args({kHidden, 2 * kFfn, kRows})
    ->Args({kFfn, kHidden, kRows})
    ->Args({kHidden, kVocabulary, kRows})
    ->Args({kHidden, 2 * kFfn, 1})
    ->UseRealTime();

void RmsNormRows(benchmark::State& state) {
  const auto kernels = MakeKernels();
  const auto x = testing::UniformData(2, kRows * kHidden);
  const std::vector<float> weight(kHidden, 1.0f);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    kernels->RmsNorm({.weight = weight.data(),
                      .epsilon = 1e-6f,
                      .width = kHidden,
                      .rows = kRows,
                      .x = x.data(),
                      .x_stride = kHidden,
                      .y = y.data(),
                      .y_stride = kHidden});
  }
}
BENCHMARK(RmsNormRows)->UseRealTime();

void SwiGluRows(benchmark::State& state) {
  const auto kernels = MakeKernels();
  const auto x = testing::UniformData(2, kRows * 2 * kFfn, 4);
  std::vector<float> y(kRows * kFfn);
  for (auto _ : state) {
    kernels->SwiGlu({.width = kFfn, .rows = kRows, .gate_up = x.data(), .y = y.data()});
  }
}
BENCHMARK(SwiGluRows)->UseRealTime();

// Decode of kRows sequences at one context length, or prefill of one chunk of that length.
void AttentionAt(benchmark::State& state, bool prefill) {
  const int context = static_cast<int>(state.range(0));
  const int sequences = prefill ? 1 : kRows;
  const int rows = prefill ? context : kRows;
  const auto kernels = MakeKernels();
  const int tokens = kernels->traits().kv_block_tokens;
  const int blocks = (context + tokens - 1) / tokens;
  const auto kv = kernels
                      ->CreateKvCache({.layers = 1,
                                       .kv_heads = kKvHeads,
                                       .head_dim = kHeadDim,
                                       .blocks = sequences * blocks,
                                       .block_tokens = tokens})
                      .value();
  const kernels::Buffer rope =
      kernels->MakeRopeTable({.head_dim = kHeadDim, .positions = context}).value();
  std::vector<int32_t> table(static_cast<size_t>(sequences * blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  std::vector<int32_t> positions(static_cast<size_t>(rows)), row_sequence, query_start;
  for (int i = 0; i <= sequences; ++i) query_start.push_back(i * rows / sequences);
  for (int i = 0; i < rows; ++i) row_sequence.push_back(prefill ? 0 : i);
  auto qkv =
      testing::UniformData(2, static_cast<size_t>(rows * (kQHeads + 2 * kKvHeads) * kHeadDim));
  std::vector<float> y(static_cast<size_t>(rows * kQHeads * kHeadDim));
  const kernels::StepShape shape{.rows = rows, .sequences = sequences, .blocks_max = blocks};
  const kernels::StepInputs inputs{.positions = positions.data(),
                                   .row_sequence = row_sequence.data(),
                                   .query_start = query_start.data(),
                                   .block_table = table.data()};
  // Fills the pool: position by position for decode.
  for (int position = 0; position < context; ++position) {
    for (int i = 0; i < rows; ++i) positions[static_cast<size_t>(i)] = prefill ? i : position;
    kernels->QkvPrepare({.shape = shape,
                         .inputs = inputs,
                         .q_heads = kQHeads,
                         .kv_heads = kKvHeads,
                         .head_dim = kHeadDim,
                         .rope_table = rope.as<float>(),
                         .qkv = qkv.data(),
                         .kv = kv.get()});
    if (prefill) break;
  }
  for (auto _ : state) {
    kernels->Attention({.shape = shape,
                        .inputs = inputs,
                        .q_heads = kQHeads,
                        .kv_heads = kKvHeads,
                        .head_dim = kHeadDim,
                        .split_kv_size = 256,
                        .qkv = qkv.data(),
                        .kv = kv.get(),
                        .y = y.data()});
  }
  const double pairs = prefill ? 0.5 * context * (context + 1) : double{kRows} * context;
  state.counters["flops"] = benchmark::Counter(4.0 * pairs * kQHeads * kHeadDim,
                                               benchmark::Counter::kIsIterationInvariantRate);
}
void DecodeAttention(benchmark::State& state) { AttentionAt(state, false); }
void PrefillAttention(benchmark::State& state) { AttentionAt(state, true); }
BENCHMARK(DecodeAttention)->Arg(128)->Arg(1024)->Arg(8192)->UseRealTime();
BENCHMARK(PrefillAttention)->Arg(256)->Arg(2048)->UseRealTime();

void SampleRows(benchmark::State& state) {
  const int vocabulary = static_cast<int>(state.range(0));
  const auto kernels = MakeKernels();
  const auto logits = testing::UniformData(2, static_cast<size_t>(kRows * vocabulary), 9);
  std::vector<kernels::SamplingRow> params(kRows);
  for (auto& row : params) row.top_p = state.range(1) != 0 ? 0.95f : 1.0f;
  std::vector<int32_t> ids(kRows);
  std::vector<kernels::SampleError> errors(kRows);
  for (auto _ : state) {
    for (auto& row : params) ++row.position;
    kernels->Sample({.rows = kRows,
                     .vocabulary = vocabulary,
                     .vocabulary_sampled = vocabulary,
                     .logits = logits.data(),
                     .row_params = params.data(),
                     .ids = ids.data(),
                     .errors = errors.data()});
  }
}
BENCHMARK(SampleRows)
    ->Args({kVocabulary, 0})
    ->Args({kVocabulary, 1})
    ->Args({151936, 0})
    ->Args({151936, 1})
    ->UseRealTime();

void LogprobRows(benchmark::State& state) {
  const int vocabulary = static_cast<int>(state.range(0));
  const auto kernels = MakeKernels();
  const auto logits = testing::UniformData(2, static_cast<size_t>(kRows * vocabulary), 9);
  const std::vector<kernels::LogprobRow> rows(kRows, {.temperature = 0.8f, .top_count = 5});
  std::vector<float> raw(kRows), scaled(kRows), top(kRows * kernels::kTopLogprobsMax);
  std::vector<int32_t> top_ids(kRows * kernels::kTopLogprobsMax);
  std::vector<kernels::SampleError> errors(kRows);
  for (auto _ : state) {
    kernels->Logprobs({.rows = kRows,
                       .vocabulary = vocabulary,
                       .logits = logits.data(),
                       .row_params = rows.data(),
                       .raw = raw.data(),
                       .scaled = scaled.data(),
                       .top_ids = top_ids.data(),
                       .top_logprobs = top.data(),
                       .errors = errors.data()});
  }
}
BENCHMARK(LogprobRows)->Arg(kVocabulary)->Arg(151936)->UseRealTime();

}  // namespace
}  // namespace lockstep::bench
