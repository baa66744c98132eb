// Attention on the device at the shape of Qwen3-8B: decode by bytes of keys and values read per
// second, causal prefill by floating-point operations per second, for every choice of block and
// split. Before a choice is timed, its outputs at that shape are checked: none is left over from
// the poison, and decode equals prefill bit for bit.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/kernels/cuda/attention_data.h"
#include "bench/kernels/cuda/device_bench.h"
#include "tests/gpu/gpu_test.h"

namespace lockstep::bench {
namespace {

using kernels::cuda::AttentionSchedule;
using kernels::cuda::KernelPath;
using testing::Must;

constexpr int kTokensMax = 256 * 8192;
constexpr int kRowsMax = 16384;
constexpr int kSequencesMax = 256;

AttentionData& Data() {
  static auto data = std::make_unique<AttentionData>(kTokensMax, kRowsMax, kSequencesMax);
  return *data;
}

// Mean seconds of a launch, over `launches` of them back to back.
double SecondsPerLaunch(AttentionData& data, const AttentionData::Variant& variant, int launches) {
  cudaEvent_t begin;
  cudaEvent_t end;
  Must(cudaEventCreate(&begin));
  Must(cudaEventCreate(&end));
  Must(cudaEventRecord(begin, nullptr));
  for (int turn = 0; turn < launches; ++turn) data.Enqueue(variant, turn, nullptr);
  Must(cudaEventRecord(end, nullptr));
  Must(cudaEventSynchronize(end));
  float milliseconds = 0;
  Must(cudaEventElapsedTime(&milliseconds, begin, end));
  Must(cudaEventDestroy(begin));
  Must(cudaEventDestroy(end));
  return static_cast<double>(milliseconds) / 1000 / launches;
}

std::vector<uint16_t> OutputsOf(AttentionData& data, const AttentionData::Variant& variant) {
  data.Poison();
  data.Plan(variant, nullptr);
  data.Enqueue(variant, 1, nullptr);
  Must(cudaDeviceSynchronize());
  return data.Outputs();
}

// Why the outputs of what was loaded are wrong, or empty: `other` is another way to compute them.
// Looks once for each `name`; repetitions only measure.
std::string CheckOutputs(const std::string& name, AttentionData& data,
                         const AttentionData::Variant& variant, const AttentionSchedule& other) {
  static std::set<std::string> checked;
  if (!checked.insert(name).second) return "";
  const std::vector<uint16_t> outputs = OutputsOf(data, variant);
  for (const uint16_t value : outputs) {
    if ((value & 0x7F80) == 0x7F80) return "an output is not finite";
  }
  AttentionData::Variant second = variant;
  second.schedule = other;
  return OutputsOf(data, second) == outputs ? "" : "two schedules differ in their bits";
}

// Portable kernels are checked against Hopper's own.
std::string NameOfCase(const std::string& kind, KernelPath path) {
  return path == KernelPath::kSm90 ? kind : kind + "Portable";
}

std::string NameOf(const std::string& kind, const benchmark::State& state) {
  std::string name = kind;
  for (int i = 0; i < 4; ++i)
    absl::StrAppend(&name, "/", i < 3 || name[0] == 'd' ? state.range(static_cast<size_t>(i)) : 0);
  return name;
}

void Time(benchmark::State& state, const AttentionData::Variant& variant, int launches) {
  AttentionData& data = Data();
  data.Plan(variant, nullptr);
  SecondsPerLaunch(data, variant, 3);
  for (auto _ : state) state.SetIterationTime(SecondsPerLaunch(data, variant, launches));
}

// Launches that fill about `seconds`, from a first estimate.
int LaunchesFor(double estimate, double seconds) {
  return std::max(4, std::min(200, static_cast<int>(seconds / estimate)));
}

void Decode(benchmark::State& state, KernelPath path) {
  const int batch = static_cast<int>(state.range(2));
  const int context = static_cast<int>(state.range(3));
  const AttentionData::Variant variant{.kv_block = static_cast<int>(state.range(0)),
                                       .split_kv_size = static_cast<int>(state.range(1)),
                                       .schedule = {.path = path}};
  AttentionData& data = Data();
  data.Load(batch, context, 1);
  AttentionSchedule as_prefill;
  as_prefill.split_decode = false;
  if (const std::string why =
          CheckOutputs(NameOf(NameOfCase("decode", path), state), data, variant, as_prefill);
      !why.empty()) {
    state.SkipWithError(why.c_str());
    return;
  }
  const double bytes =
      2.0 * 2 * batch * context * AttentionData::kKvHeads * AttentionData::kHeadDim;
  Time(state, variant, LaunchesFor(bytes / 4e12 + 5e-6, 0.02));
  state.counters["kv_bytes_per_second"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["floor_seconds"] = bytes / 4.33e12;
}

void Prefill(benchmark::State& state, KernelPath path) {
  const int context = static_cast<int>(state.range(2));
  const AttentionData::Variant variant{.kv_block = static_cast<int>(state.range(0)),
                                       .split_kv_size = static_cast<int>(state.range(1)),
                                       .schedule = {.path = path}};
  AttentionData& data = Data();
  data.Load(1, context, context);
  AttentionSchedule narrow;
  narrow.prefill_rows = 64;
  if (const std::string why =
          CheckOutputs(NameOf(NameOfCase("prefill", path), state), data, variant, narrow);
      !why.empty()) {
    state.SkipWithError(why.c_str());
    return;
  }
  const double pairs = 0.5 * context * (context + 1.0);
  const double flops = 4 * pairs * AttentionData::kQueryHeads * AttentionData::kHeadDim;
  Time(state, variant, LaunchesFor(flops / 4e14 + 5e-6, 0.03));
  state.counters["flops"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["floor_seconds"] = flops / 750e12;
}

void Register(KernelPath path, int64_t block, int64_t split) {
  for (const int64_t context : {1024, 4096, 8192}) {
    for (const int64_t batch : {1, 16, 64, 256}) {
      benchmark::RegisterBenchmark(NameOfCase("Decode", path).c_str(), Decode, path)
          ->ArgNames({"block", "split", "batch", "context"})
          ->Args({block, split, batch, context})
          ->Iterations(1)
          ->UseManualTime();
    }
  }
  for (const int64_t context : {1024, 4096, 8192, 16384}) {
    benchmark::RegisterBenchmark(NameOfCase("Prefill", path).c_str(), Prefill, path)
        ->ArgNames({"block", "split", "context"})
        ->Args({block, split, context})
        ->Iterations(1)
        ->UseManualTime();
  }
}

void RegisterAll() {
  for (const int64_t block : {64, 128}) {
    for (const int64_t split : {256, 512, 1024}) Register(KernelPath::kSm90, block, split);
  }
  // As the contract has them.
  Register(KernelPath::kPortable, kernels::cuda::kKvBlock, kernels::cuda::kSplitKvSize);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::RunDeviceBench(argc, argv, lockstep::bench::RegisterAll);
}
