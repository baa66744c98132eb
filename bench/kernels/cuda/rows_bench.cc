// Ops that look at each row by itself, on the device, at the shape of Qwen3-8B: bytes that must
// move over the time of a launch, beside the floor of reading and writing them once at 4.33 TB/s.
// Launches are those of a captured graph and take turns on buffers larger than any cache, as far as
// an op's rows fill one; small batches find their inputs in the cache, as in a step of a model.
#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/cuda/device_bench.h"
#include "kernels/cuda/row_ops.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/test_streams.h"
#include "tests/support/philox_data.h"

namespace lockstep::bench {
namespace {

namespace cuda = kernels::cuda;
using testing::DeviceArray;
using testing::Must;

constexpr int kHidden = 4096;
constexpr int kFfn = 12288;
constexpr int kVocabulary = 151936;
constexpr int kQueryHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;
constexpr int kQkvWidth = (kQueryHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kRowsMax = 256;
constexpr int kPositions = 4096;
constexpr double kBytesPerSecond = 4.33e12;
// Launches in a graph.
constexpr int kTurns = 16;

size_t Size(int count) { return static_cast<size_t>(count); }

// A large buffer of random values, of which turns take parts.
template <typename T>
class Pool {
 public:
  Pool(size_t count, const std::vector<T>& run) : values_(count) {
    for (size_t at = 0; at < count; at += run.size()) {
      testing::CopyToDevice(
          std::vector<T>(run.begin(),
                         run.begin() + static_cast<ptrdiff_t>(std::min(run.size(), count - at))),
          values_.data() + at);
    }
  }
  T* Part(int turn, size_t count) const {
    return values_.data() + Size(turn) * count % (values_.size() - count + 1) / 8 * 8;
  }

 private:
  DeviceArray<T> values_;
};

// Sums of four uniform values: close to a normal distribution, of this deviation.
std::vector<float> NormalData(uint32_t stream, size_t count, float deviation) {
  const std::vector<float> uniform = testing::UniformData(stream, 4 * count, 0.866f * deviation);
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) {
    data[i] = uniform[4 * i] + uniform[4 * i + 1] + uniform[4 * i + 2] + uniform[4 * i + 3];
  }
  return data;
}

// Everything that the ops read and write.
struct Data {
  // 16 different rows of logits behind each other, often.
  Pool<float> logits{Size(1024) * kVocabulary, NormalData(1, Size(16) * kVocabulary, 2.5f)};
  Pool<uint16_t> in{size_t{256} << 20, testing::Bf16Data(testing::UniformData(2, 1 << 22, 4))};
  Pool<uint16_t> out{size_t{256} << 20, testing::Bf16Data(testing::UniformData(3, 1 << 22, 4))};
  Pool<float> partials{size_t{64} << 20, testing::UniformData(4, 1 << 22, 4)};
  // What works in place takes its own, and weights that leave values what they are: others would
  // shrink with every launch until a later op meets nothing but denormals.
  Pool<uint16_t> in_place{size_t{32} << 20, testing::Bf16Data(testing::UniformData(9, 1 << 22, 4))};
  DeviceArray<float> ones{std::vector<float>(kHeadDim, 1.0f)};
  DeviceArray<float> weight{testing::UniformData(5, kHidden)};
  DeviceArray<float> rope{testing::UniformData(6, Size(kPositions* kHeadDim))};
  DeviceArray<uint16_t> pages{Size(kRowsMax) * Size(kKvHeads) * 2 * cuda::KvTileElements(kHeadDim)};
  DeviceArray<int32_t> ids{Ids(7, 30000)};
  DeviceArray<int32_t> positions{Ids(8, kPositions)};
  DeviceArray<int32_t> sequences{Counting()};
  DeviceArray<int32_t> block_table{BlockTable()};
  // Of portable kernels: two rows for each multiprocessor of an H200.
  DeviceArray<uint8_t> rows_of_logits{cuda::VocabularyScratchBytes(kVocabulary, 264)};

  static std::vector<int32_t> Ids(uint32_t stream, uint32_t bound) {
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < kRowsMax; ++i) {
      ids.push_back(static_cast<int32_t>(testing::PhiloxWord(stream, i) % bound));
    }
    return ids;
  }
  static std::vector<int32_t> Counting() {
    std::vector<int32_t> values;
    for (int i = 0; i < kRowsMax; ++i) values.push_back(i);
    return values;
  }
  // Every position of a sequence in its one page.
  static std::vector<int32_t> BlockTable() {
    std::vector<int32_t> table;
    for (int row = 0; row < kRowsMax; ++row) {
      table.resize(table.size() + Size(kPositions / cuda::kPageTokens), row);
    }
    return table;
  }
};

Data& Shared() {
  static auto data = std::make_unique<Data>();
  return *data;
}

// One launch of an op on `rows` rows.
struct Case {
  std::string name;
  double row_bytes;  // That must move.
  std::function<void(int rows, int turn, cudaStream_t stream)> enqueue;
};

// Mean seconds of a launch in a graph that is replayed back to back.
double SecondsPerLaunch(const Case& op, int rows, int replays) {
  const testing::TestStream stream;
  op.enqueue(rows, 0, stream.get());
  stream.Wait();
  cudaGraph_t graph;
  Must(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  for (int turn = 0; turn < kTurns; ++turn) op.enqueue(rows, turn, stream.get());
  Must(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t exec;
  Must(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin;
  cudaEvent_t end;
  Must(cudaEventCreate(&begin));
  Must(cudaEventCreate(&end));
  for (int i = 0; i < 2; ++i) Must(cudaGraphLaunch(exec, stream.get()));
  Must(cudaEventRecord(begin, stream.get()));
  for (int i = 0; i < replays; ++i) Must(cudaGraphLaunch(exec, stream.get()));
  Must(cudaEventRecord(end, stream.get()));
  stream.Wait();
  float milliseconds = 0;
  Must(cudaEventElapsedTime(&milliseconds, begin, end));
  Must(cudaEventDestroy(begin));
  Must(cudaEventDestroy(end));
  Must(cudaGraphExecDestroy(exec));
  Must(cudaGraphDestroy(graph));
  return static_cast<double>(milliseconds) / 1000 / (replays * kTurns);
}

void Time(benchmark::State& state, const Case& op) {
  const int rows = static_cast<int>(state.range(0));
  const double bytes = op.row_bytes * rows;
  // About 4 milliseconds.
  const int replays = std::max(4, static_cast<int>(0.004 / kTurns / (bytes / 2e12 + 3e-6)));
  double seconds = 0;
  for (auto _ : state) {
    seconds = SecondsPerLaunch(op, rows, replays);
    state.SetIterationTime(seconds);
  }
  state.counters["bytes"] = bytes;
  state.counters["floor_seconds"] = bytes / kBytesPerSecond;
  state.counters["share_of_bandwidth"] = bytes / kBytesPerSecond / seconds;
}

Case EmbeddingCase() {
  return {"Embedding", 2.0 * 2 * kHidden, [](int rows, int turn, cudaStream_t stream) {
            Data& data = Shared();
            Must(cuda::Embedding({.table = data.in.Part(turn, Size(30000) * kHidden),
                                  .table_dtype = kernels::DType::kBf16,
                                  .width = kHidden,
                                  .rows = rows,
                                  .ids = data.ids.data(),
                                  .y = data.out.Part(turn, Size(rows) * kHidden)},
                                 stream));
          }};
}

cuda::ResidualRmsNormArgs NormArgs(int rows, int turn) {
  Data& data = Shared();
  const size_t part = Size(rows) * kHidden;
  return {.norm = {.weight = data.weight.data(),
                   .epsilon = 1e-6f,
                   .width = kHidden,
                   .rows = rows,
                   .x = data.in.Part(turn, part),
                   .x_stride = kHidden,
                   .y = data.out.Part(2 * turn, part),
                   .y_stride = kHidden},
          .residual = data.out.Part(2 * turn + 1, part),
          .residual_stride = kHidden,
          .update = data.in.Part(turn, part),
          .partials = data.partials.Part(turn, 2 * part),
          .partial_stride = part};
}

Case NormCase() {
  return {"RmsNorm", 2.0 * 2 * kHidden, [](int rows, int turn, cudaStream_t stream) {
            Must(cuda::RmsNorm(NormArgs(rows, turn).norm, stream));
          }};
}

Case ResidualNormCase(int segments) {
  const double update_bytes = segments == 1 ? 2 : 4.0 * segments;
  return {"ResidualRmsNorm/segments:" + std::to_string(segments), (6 + update_bytes) * kHidden,
          [segments](int rows, int turn, cudaStream_t stream) {
            cuda::ResidualRmsNormArgs args = NormArgs(rows, turn);
            args.segments = segments;
            Must(cuda::ResidualRmsNorm(args, stream));
          }};
}

Case QkvPrepareCase() {
  // q and k are read and written, v too, and the angles are read.
  return {
      "QkvPrepare", 2.0 * 2 * kQkvWidth + 4.0 * kHeadDim,
      [](int rows, int turn, cudaStream_t stream) {
        Data& data = Shared();
        Must(cuda::QkvPrepare({.args = {.shape = {.rows = rows,
                                                  .sequences = rows,
                                                  .blocks_max = kPositions / cuda::kPageTokens},
                                        .inputs = {.positions = data.positions.data(),
                                                   .row_sequence = data.sequences.data(),
                                                   .block_table = data.block_table.data()},
                                        .q_heads = kQueryHeads,
                                        .kv_heads = kKvHeads,
                                        .head_dim = kHeadDim,
                                        .q_norm = data.ones.data(),
                                        .k_norm = data.ones.data(),
                                        .epsilon = 1e-6f,
                                        .rope_table = data.rope.data(),
                                        .qkv = data.in_place.Part(turn, Size(rows) * kQkvWidth)},
                               .pool = {.data = data.pages.data(),
                                        .layers = 1,
                                        .kv_heads = kKvHeads,
                                        .head_dim = kHeadDim}},
                              stream));
      }};
}

Case SwiGluCase() {
  return {"SwiGlu", 3.0 * 2 * kFfn, [](int rows, int turn, cudaStream_t stream) {
            Data& data = Shared();
            Must(cuda::SwiGlu({.width = kFfn,
                               .rows = rows,
                               .gate_up = data.in.Part(turn, Size(rows) * 2 * kFfn),
                               .y = data.out.Part(turn, Size(rows) * kFfn)},
                              stream));
          }};
}

// Results of ops over the vocabulary, and rows that all want the same.
struct VocabularyData {
  VocabularyData(const kernels::LogprobRow& logprobs, const kernels::SamplingRow& sampling)
      : logprob_rows(std::vector<kernels::LogprobRow>(kRowsMax, logprobs)),
        sampling_rows(SamplingRows(sampling)) {}

  static std::vector<kernels::SamplingRow> SamplingRows(const kernels::SamplingRow& sampling) {
    std::vector<kernels::SamplingRow> rows(kRowsMax, sampling);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].sub_seed = i;
    return rows;
  }

  DeviceArray<kernels::LogprobRow> logprob_rows;
  DeviceArray<kernels::SamplingRow> sampling_rows;
  DeviceArray<float> raw{Size(kRowsMax)};
  DeviceArray<float> scaled{Size(kRowsMax)};
  DeviceArray<float> entropy{Size(kRowsMax)};
  DeviceArray<int32_t> top_ids{Size(kRowsMax * kernels::kTopLogprobsMax)};
  DeviceArray<float> top_logprobs{Size(kRowsMax * kernels::kTopLogprobsMax)};
  DeviceArray<int32_t> ids{Size(kRowsMax)};
  DeviceArray<kernels::SampleError> errors{Size(kRowsMax)};
};

// How a row of logits is spread: over so many CTAs of a cluster, or 0 for portable kernels.
std::string NameOfSpread(int cluster) {
  return cluster == 0 ? "portable" : "cluster:" + std::to_string(cluster);
}

cuda::VocabularySchedule ScheduleOf(int cluster) {
  if (cluster > 0) return {.cluster = cluster};
  return {.path = cuda::KernelPath::kPortable,
          .scratch = Shared().rows_of_logits.data(),
          .scratch_bytes = Shared().rows_of_logits.size()};
}

Case LogprobsCase(const std::string& name, const kernels::LogprobRow& row, int cluster) {
  const auto data = std::make_shared<VocabularyData>(row, kernels::SamplingRow{});
  return {"Logprobs/" + name + "/" + NameOfSpread(cluster), 4.0 * kVocabulary,
          [data, cluster](int rows, int turn, cudaStream_t stream) {
            Must(cuda::Logprobs({.rows = rows,
                                 .vocabulary = kVocabulary,
                                 .logits = Shared().logits.Part(turn, Size(rows) * kVocabulary),
                                 .row_params = data->logprob_rows.data(),
                                 .raw = data->raw.data(),
                                 .scaled = data->scaled.data(),
                                 .entropy = data->entropy.data(),
                                 .top_ids = data->top_ids.data(),
                                 .top_logprobs = data->top_logprobs.data(),
                                 .errors = data->errors.data()},
                                ScheduleOf(cluster), stream));
          }};
}

Case SampleCase(const std::string& name, const kernels::SamplingRow& row, int cluster) {
  const auto data = std::make_shared<VocabularyData>(kernels::LogprobRow{}, row);
  return {"Sample/" + name + "/" + NameOfSpread(cluster), 4.0 * kVocabulary,
          [data, cluster](int rows, int turn, cudaStream_t stream) {
            Must(cuda::Sample({.rows = rows,
                               .vocabulary = kVocabulary,
                               .vocabulary_sampled = kVocabulary,
                               .logits = Shared().logits.Part(turn, Size(rows) * kVocabulary),
                               .row_params = data->sampling_rows.data(),
                               .ids = data->ids.data(),
                               .errors = data->errors.data()},
                              ScheduleOf(cluster), stream));
          }};
}

std::vector<Case> AllCases() {
  std::vector<Case> cases = {EmbeddingCase(),     NormCase(),       ResidualNormCase(1),
                             ResidualNormCase(2), QkvPrepareCase(), SwiGluCase()};
  for (const int cluster : {0, 4, 8, 16}) {
    cases.push_back(LogprobsCase("plain", {.target_id = 5}, cluster));
    cases.push_back(SampleCase("plain", {}, cluster));
  }
  cases.push_back(LogprobsCase("scaled", {.target_id = 5, .temperature = 0.7f}, 8));
  cases.push_back(LogprobsCase("entropy", {.target_id = 5, .want_entropy = 1}, 8));
  cases.push_back(LogprobsCase("top20", {.target_id = 5, .top_count = 20}, 8));
  cases.push_back(SampleCase("greedy", {.temperature = 0}, 8));
  cases.push_back(SampleCase("scaled", {.temperature = 0.7f}, 8));
  cases.push_back(SampleCase("top_k", {.top_k = 20}, 8));
  cases.push_back(SampleCase("top_p", {.top_p = 0.95f}, 8));
  cases.push_back(LogprobsCase("top20", {.target_id = 5, .top_count = 20}, 0));
  cases.push_back(SampleCase("top_p", {.top_p = 0.95f}, 0));
  cases.push_back(SampleCase("top_k_top_p", {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}, 8));
  return cases;
}

void RegisterAll() {
  for (const Case& op : AllCases()) {
    for (const int64_t rows : {1, 16, 64, 256}) {
      benchmark::RegisterBenchmark(op.name.c_str(),
                                   [op](benchmark::State& state) { Time(state, op); })
          ->ArgNames({"rows"})
          ->Args({rows})
          ->Iterations(1)
          ->UseManualTime();
    }
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::RunDeviceBench(argc, argv, lockstep::bench::RegisterAll);
}
