// The all-reduce of a row-parallel layer, fp32 sums of 4096 outputs a token, against NCCL's, each
// in a graph, in turns: on as many GPUs as --ranks says, a thread each. Usage:
// cuda_collective_bench --out=FILE [--commit=ID] [--ranks=N] [--tokens=1,2,…] [--rounds=N]
//   exchange, scatter     our two ways, to RNbf16(T)
//   plain                 the one that is chosen
//   fused                 and the residual and the norm behind it
//   nccl_f32, nccl_bf16   NCCL's own, as its environment says
//   nccl_fused            NCCL's in bf16, then residual and norm in one kernel
#include <nccl.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/cuda/collective/peer_group.h"
#include "kernels/cuda/linear/timed_graph.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/runtime/stream.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/philox_data.h"

namespace lockstep::bench {
namespace {

using kernels::cuda::PeerEnd;
using kernels::cuda::SumUse;
using kernels::cuda::TimedGraph;
using testing::DeviceArray;
using testing::Must;
using Json = nlohmann::ordered_json;

constexpr int kOutputs = 4096;
constexpr float kEpsilon = 1e-6f;

struct Flags {
  std::string out;
  std::string commit = "unknown";
  int ranks = 2;
  int rounds = 21;
  std::vector<int> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
};

void MustNccl(ncclResult_t result) {
  LOCKSTEP_CHECK(result == ncclSuccess) << ncclGetErrorString(result);
}

void MustStatus(const absl::Status& status) { LOCKSTEP_CHECK(status.ok()) << status.ToString(); }

// Long enough that starting it hardly counts; a multiple of both turns of every buffer.
int TurnsOf(int tokens) { return std::clamp(25600 / tokens, 4, 100) / 2 * 2; }

// Microseconds of a turn, by case and round, of one size.
using Samples = std::map<std::string, std::vector<double>>;

class Rank {
 public:
  Rank(PeerEnd* end, ncclComm_t comm, int tokens_max, cudaStream_t stream)
      : end_(end),
        comm_(comm),
        stream_(stream),
        weight_(testing::UniformData(1, kOutputs)),
        sums_(size_t{static_cast<size_t>(tokens_max)} * kOutputs),
        reduced_(sums_.size()),
        y_(sums_.size()),
        normed_(sums_.size()) {
    const std::vector<float> values =
        testing::UniformData(static_cast<uint32_t>(end->rank() + 2), size_t{kOutputs} * 16);
    for (int buffer = 0; buffer < 2; ++buffer) Fill(values, end->BeginShow());
    Fill(values, sums_.data());
    Must(cudaMemset(y_.data(), 0, y_.size() * sizeof(uint16_t)));
    Must(cudaDeviceSynchronize());
  }

  std::vector<std::pair<std::string, TimedGraph::Turn>> Cases(int tokens) {
    const SumUse plain = {
        .rows = tokens, .outputs = kOutputs, .y = y_.data(), .y_stride = kOutputs};
    SumUse fused = plain;
    fused.accumulate = true;
    fused.norm_weight = weight_.data();
    fused.norm_epsilon = kEpsilon;
    fused.normed = normed_.data();
    fused.normed_stride = kOutputs;
    const auto show = [this](absl::Status (PeerEnd::*way)(const kernels::cuda::ShownRows&),
                             const SumUse& use) -> TimedGraph::Turn {
      return [this, way, use](int, cudaStream_t) {
        end_->BeginShow();
        return (end_->*way)({.use = use});
      };
    };
    const size_t count = static_cast<size_t>(tokens) * kOutputs;
    const auto nccl = [this, count](ncclDataType_t type) -> TimedGraph::Turn {
      return [this, count, type](int, cudaStream_t stream) {
        MustNccl(ncclAllReduce(sums_.data(), reduced_.data(), count, type, ncclSum, comm_, stream));
        return absl::OkStatus();
      };
    };
    std::vector<std::pair<std::string, TimedGraph::Turn>> cases;
    if (tokens <= 512) cases.emplace_back("exchange", show(&PeerEnd::ExchangeShown, plain));
    cases.emplace_back("scatter", show(&PeerEnd::ScatterShown, plain));
    cases.emplace_back("plain", show(&PeerEnd::AddShown, plain));
    cases.emplace_back("fused", show(&PeerEnd::AddShown, fused));
    cases.emplace_back("nccl_f32", nccl(ncclFloat));
    cases.emplace_back("nccl_bf16", nccl(ncclBfloat16));
    cases.emplace_back("nccl_fused",
                       [this, fused, bf16 = nccl(ncclBfloat16)](int turn, cudaStream_t stream) {
                         MustStatus(bf16(turn, stream));
                         Must(kernels::cuda::UseRounded(
                             reinterpret_cast<const uint16_t*>(reduced_.data()), fused, stream));
                         return absl::OkStatus();
                       });
    return cases;
  }

  // All ranks at once.
  TimedGraph Captured(const TimedGraph::Turn& turn, int turns) {
    for (int warm = 0; warm < 2; ++warm) MustStatus(turn(warm, stream_));
    Must(cudaStreamSynchronize(stream_));
    auto graph = TimedGraph::Capture(turns, turn, stream_);
    MustStatus(graph.status());
    return *std::move(graph);
  }

  double Replay(TimedGraph& graph) {
    MustStatus(end_->Meet());
    const auto microseconds = graph.Replay();
    MustStatus(microseconds.status());
    return *microseconds;
  }

 private:
  void Fill(const std::vector<float>& values, float* to) {
    for (size_t at = 0; at < sums_.size(); at += values.size()) {
      const size_t count = std::min(values.size(), sums_.size() - at);
      Must(cudaMemcpy(to + at, values.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    }
  }

  PeerEnd* const end_;
  const ncclComm_t comm_;
  const cudaStream_t stream_;
  const DeviceArray<float> weight_;
  const DeviceArray<float> sums_;
  const DeviceArray<float> reduced_;
  const DeviceArray<uint16_t> y_;
  const DeviceArray<uint16_t> normed_;
};

// Runs on every rank's thread; rank 0's samples count the slowest rank.
void RunRank(const Flags& flags, Rank& rank, int index, std::barrier<>& all,
             std::vector<double>& times, std::vector<Samples>& samples) {
  for (size_t size = 0; size < flags.tokens.size(); ++size) {
    const int tokens = flags.tokens[size];
    std::vector<std::pair<std::string, TimedGraph>> graphs;
    for (const auto& [name, turn] : rank.Cases(tokens)) {
      all.arrive_and_wait();
      graphs.emplace_back(name, rank.Captured(turn, TurnsOf(tokens)));
    }
    for (int round = -2; round < flags.rounds; ++round) {
      for (auto& [name, graph] : graphs) {
        all.arrive_and_wait();
        times[static_cast<size_t>(index)] = rank.Replay(graph);
        all.arrive_and_wait();
        if (index != 0 || round < 0) continue;
        samples[size][name].push_back(*std::max_element(times.begin(), times.end()));
      }
    }
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<Samples> Measure(const Flags& flags) {
  std::vector<int> devices;
  for (int rank = 0; rank < flags.ranks; ++rank) devices.push_back(rank);
  auto group = kernels::cuda::CreatePeerGroup(devices, absl::Seconds(20));
  MustStatus(group.status());
  std::vector<ncclComm_t> comms(devices.size());
  MustNccl(ncclCommInitAll(comms.data(), flags.ranks, devices.data()));
  const int tokens_max = *std::max_element(flags.tokens.begin(), flags.tokens.end());
  std::vector<Samples> samples(flags.tokens.size());
  std::vector<double> times(devices.size());
  std::barrier<> all(flags.ranks);
  std::vector<std::thread> threads;
  for (const int index : devices) {
    threads.emplace_back([&, index] {
      Must(cudaSetDevice(index));
      const auto stream = kernels::cuda::CreateStream().value();
      const auto end = (*group)->End(index);
      auto* const peer = static_cast<PeerEnd*>(end.get());
      MustStatus(peer->Open(stream.get()));
      MustStatus(peer->Reserve(sizeof(float) * static_cast<size_t>(tokens_max) * kOutputs, {}));
      Rank rank(peer, comms[static_cast<size_t>(index)], tokens_max, stream.get());
      RunRank(flags, rank, index, all, times, samples);
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const ncclComm_t comm : comms) MustNccl(ncclCommDestroy(comm));
  MustStatus((*group)->status());
  return samples;
}

int Write(const Flags& flags, const std::vector<Samples>& samples) {
  int driver = 0;
  int nccl = 0;
  Must(cudaDriverGetVersion(&driver));
  MustNccl(ncclGetVersion(&nccl));
  Json points = Json::array();
  for (size_t size = 0; size < samples.size(); ++size) {
    std::printf("%5d tokens", flags.tokens[size]);
    for (const auto& [name, microseconds] : samples[size]) {
      std::printf("  %s %.2f", name.c_str(), Median(microseconds));
      points.push_back({{"tokens", flags.tokens[size]},
                        {"case", name},
                        {"turns", TurnsOf(flags.tokens[size])},
                        {"median_us", Median(microseconds)},
                        {"us", microseconds}});
    }
    std::printf("\n");
  }
  const Json record = {{"context",
                        {{"commit", flags.commit},
                         {"ranks", flags.ranks},
                         {"outputs", kOutputs},
                         {"cuda_driver", driver},
                         {"nccl", nccl}}},
                       {"points", points}};
  std::ofstream file(flags.out);
  file << record.dump(1) << "\n";
  return file.flush() ? 0 : 1;
}

bool Parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> flag =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const auto& [name, value] = flag;
    if (name == "--out") {
      flags.out = value;
    } else if (name == "--commit") {
      flags.commit = value;
    } else if (name == "--tokens") {
      flags.tokens.clear();
      for (const auto text : absl::StrSplit(value, ',')) {
        if (!absl::SimpleAtoi(text, &flags.tokens.emplace_back())) return false;
      }
    } else if (!(name == "--ranks" && absl::SimpleAtoi(value, &flags.ranks)) &&
               !(name == "--rounds" && absl::SimpleAtoi(value, &flags.rounds))) {
      return false;
    }
  }
  return !flags.out.empty() && !flags.tokens.empty() && flags.rounds > 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Flags flags;
  if (!lockstep::bench::Parse(argc, argv, flags)) {
    std::fprintf(stderr, "usage: see the top of collective_bench.cc\n");
    return 2;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < flags.ranks) {
    std::fprintf(stderr, "needs %d devices\n", flags.ranks);
    return 1;
  }
  return lockstep::bench::Write(flags, lockstep::bench::Measure(flags));
}
