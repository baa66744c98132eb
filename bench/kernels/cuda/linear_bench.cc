// Linear layers of Qwen3-8B: the certified ladder against the fastest algorithm that cuBLASLt
// offers without any restriction, at the call's exact row count, in interleaved pairs.
// Usage: cuda_linear_bench --out=FILE [--commit=ID] [--certificates=FILE] [--layers=a,b]
//                          [--pairs=N] [--kernels=all|library|portable]
// `library`: without our own kernels; `portable`: ours for any GPU since Ampere and nothing else.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/linear/certifier.h"
#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/cuda/linear/linear_timing.h"
#include "kernels/cuda/runtime/stream.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/linear_rig.h"

namespace lockstep::bench {
namespace {

using kernels::DType;
using kernels::cuda::AlgorithmTraits;
using kernels::cuda::CertificateTable;
using kernels::cuda::KernelPath;
using kernels::cuda::LinearCall;
using kernels::cuda::LinearPlan;
using kernels::cuda::LinearRung;
using kernels::cuda::LinearShape;
using kernels::cuda::LinearTiming;
using kernels::cuda::LtMatmul;
using kernels::cuda::TimedGraph;

constexpr int kRowsMax = 8192;
// What cuBLAS itself takes on this architecture.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr double kTurnMicroseconds = 400;
constexpr size_t kFinalists = 4;

struct Flags {
  std::string out;
  std::string commit = "unknown";
  std::string certificates;
  std::vector<std::string> layers;
  int pairs = 21;
  bool library = true;
  std::optional<KernelPath> own_kernels = KernelPath::kSm90;
  std::string command;
};

struct Layer {
  std::string name;
  LinearShape shape;
};

std::vector<Layer> AllLayers() {
  using testing::DenseShape;
  return {{"qkv", DenseShape(6144, 4096)},
          {"o", DenseShape(4096, 4096)},
          {"o_s2", DenseShape(4096, 4096, 2)},
          {"gate_up", DenseShape(24576, 4096)},
          {"down", DenseShape(4096, 12288)},
          {"down_s2", DenseShape(4096, 12288, 2)},
          {"lm_head", DenseShape(151936, 4096, 1, DType::kF32)}};
}

// Decode batches, prefill chunks, and odd sizes of both.
std::vector<int> RowCounts() {
  return {1,   2,   3,   5,   8,   13,   16,   24,   32,   48,   64,   100,  128, 200,
          256, 384, 512, 700, 768, 1000, 1024, 1500, 2048, 3000, 4096, 6000, 8192};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const char* NameOf(kernels::cuda::LinearEngine engine) {
  switch (engine) {
    case kernels::cuda::LinearEngine::kCublasLt:
      return "cublasLt";
    case kernels::cuda::LinearEngine::kSm90:
      return "sm90";
    case kernels::cuda::LinearEngine::kMma:
      return "mma";
  }
  return "";
}

std::string Describe(const AlgorithmTraits& traits) {
  return absl::StrFormat(
      "%s id %d tile %d stages %d split %d reduction %d swizzle %d custom %d "
      "inner %d cluster %d",
      NameOf(traits.engine), traits.id, traits.tile, traits.stages, traits.split_k,
      traits.reduction_scheme, traits.swizzle, traits.custom, traits.inner_shape,
      traits.cluster_shape);
}

struct Point {
  std::string layer;
  LinearShape shape;
  int rows = 0;
  int launched_rows = 0;
  AlgorithmTraits certified;
  AlgorithmTraits free;
  std::vector<double> certified_us;
  std::vector<double> free_us;

  double ratio() const { return Median(free_us) / Median(certified_us); }
};

class LinearBench {
 public:
  LinearBench(cublasLtHandle_t handle, const CertificateTable& table, int pairs)
      : handle_(handle), table_(table), pairs_(pairs) {}

  absl::Status Run(const Layer& layer, std::vector<Point>& points) {
    LOCKSTEP_ASSIGN_OR_RETURN(const LinearPlan plan,
                              LinearPlan::Create(handle_, table_, layer.shape));
    LOCKSTEP_ASSIGN_OR_RETURN(const kernels::cuda::Stream stream, kernels::cuda::CreateStream());
    const size_t scratch =
        std::max(kWorkspaceBytes, plan.WorkspaceBytes(kRowsMax, false)) + size_t{512};
    // A ladder that ends below the call's rows writes those that pad its last rung, too.
    LOCKSTEP_ASSIGN_OR_RETURN(
        const LinearTiming timing,
        LinearTiming::Create(layer.shape, plan.PaddedRows(kRowsMax), scratch, stream.get()));
    for (const int rows : RowCounts()) {
      Point point{.layer = layer.name, .shape = layer.shape, .rows = rows};
      point.launched_rows = plan.PaddedRows(rows);
      for (const auto* certificate : table_.Ladder(layer.shape)) {
        if (certificate->rows == point.launched_rows) point.certified = certificate->traits;
      }
      LOCKSTEP_ASSIGN_OR_RETURN(
          TimedGraph certified,
          timing.Graph(rows, kTurnMicroseconds, [&](const LinearCall& call, cudaStream_t on) {
            return plan.Run(call, on);
          }));
      LOCKSTEP_ASSIGN_OR_RETURN(TimedGraph free, Free(timing, point));
      LOCKSTEP_RETURN_IF_ERROR(certified.Replay().status());
      for (int pair = 0; pair < pairs_; ++pair) {
        LOCKSTEP_ASSIGN_OR_RETURN(const double ours, certified.Replay());
        LOCKSTEP_ASSIGN_OR_RETURN(const double theirs, free.Replay());
        point.certified_us.push_back(ours);
        point.free_us.push_back(theirs);
      }
      std::printf("%-8s M %4d (%4d)  certified %9.2f us  free %9.2f us  x%.3f\n",
                  layer.name.c_str(), rows, point.launched_rows, Median(point.certified_us),
                  Median(point.free_us), point.ratio());
      points.push_back(std::move(point));
    }
    return absl::OkStatus();
  }

 private:
  // The fastest of everything the library offers for one product over all of K.
  absl::StatusOr<TimedGraph> Free(const LinearTiming& timing, Point& point) {
    LinearShape shape = point.shape;
    shape.segments = 1;
    LOCKSTEP_ASSIGN_OR_RETURN(const LtMatmul matmul, LtMatmul::Create(handle_, shape, point.rows));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<LtMatmul::Offer> offers,
                              matmul.Offers(LtMatmul::Reductions::kAny, kWorkspaceBytes));
    struct Candidate {
      AlgorithmTraits traits;
      TimedGraph graph;
      double microseconds;
    };
    std::vector<Candidate> candidates;
    for (const LtMatmul::Offer& offer : offers) {
      const auto layer = [&](const LinearCall& call, cudaStream_t on) {
        return matmul.Enqueue(offer.algorithm,
                              {.weight = call.weight,
                               .x = call.x,
                               .product = call.y,
                               .workspace = call.workspace,
                               .workspace_bytes = kWorkspaceBytes},
                              on);
      };
      LOCKSTEP_ASSIGN_OR_RETURN(TimedGraph graph,
                                timing.Graph(point.rows, kTurnMicroseconds, layer));
      LOCKSTEP_RETURN_IF_ERROR(graph.Replay().status());
      LOCKSTEP_ASSIGN_OR_RETURN(const double first, graph.Replay());
      LOCKSTEP_ASSIGN_OR_RETURN(const double second, graph.Replay());
      candidates.push_back(
          {kernels::cuda::TraitsOf(offer.algorithm), std::move(graph), std::min(first, second)});
    }
    if (candidates.empty()) return absl::NotFoundError("the library offers nothing");
    const auto faster = [](const Candidate& a, const Candidate& b) {
      return a.microseconds < b.microseconds;
    };
    std::sort(candidates.begin(), candidates.end(), faster);
    candidates.erase(
        candidates.begin() + static_cast<ptrdiff_t>(std::min(candidates.size(), kFinalists)),
        candidates.end());
    std::vector<std::vector<double>> rounds(candidates.size());
    for (int round = 0; round < 7; ++round) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        LOCKSTEP_ASSIGN_OR_RETURN(const double microseconds, candidates[i].graph.Replay());
        rounds[i].push_back(microseconds);
      }
    }
    for (size_t i = 0; i < candidates.size(); ++i) candidates[i].microseconds = Median(rounds[i]);
    Candidate& best = *std::min_element(candidates.begin(), candidates.end(), faster);
    point.free = best.traits;
    return std::move(best.graph);
  }

  cublasLtHandle_t handle_;
  const CertificateTable& table_;
  int pairs_;
};

std::string Numbers(const std::vector<double>& values) {
  return absl::StrCat("[",
                      absl::StrJoin(values, ", ",
                                    [](std::string* out, double value) {
                                      absl::StrAppendFormat(out, "%.3f", value);
                                    }),
                      "]");
}

std::string Json(const Point& point) {
  const LinearShape& shape = point.shape;
  return absl::StrFormat(
      "{\"layer\": \"%s\", \"outputs\": %d, \"inputs\": %d, \"segments\": %d, \"rows\": %d, "
      "\"launched_rows\": %d, \"floor_us\": %.3f, \"certified_us\": %s, \"free_us\": %s, "
      "\"certified\": \"%s\", \"free\": \"%s\"}",
      point.layer, shape.outputs, shape.inputs, shape.segments, point.rows, point.launched_rows,
      LinearTiming::FloorMicroseconds(shape, point.rows), Numbers(point.certified_us),
      Numbers(point.free_us), Describe(point.certified), Describe(point.free));
}

std::string Json(const CertificateTable& table) {
  std::string json = "\"refused\": [\n";
  std::vector<std::string> lines;
  for (const auto& refusal : table.refusals()) {
    lines.push_back(absl::StrFormat(
        "{\"outputs\": %d, \"inputs\": %d, \"segments\": %d, \"rows\": %d, \"algorithm\": \"%s\", "
        "\"differing\": %d, \"compared\": %d}",
        refusal.shape.outputs, refusal.shape.inputs, refusal.shape.segments, refusal.rows,
        Describe(refusal.traits), refusal.differing, refusal.compared));
  }
  absl::StrAppend(&json, absl::StrJoin(lines, ",\n"), "\n],\n\"ladders\": [\n");
  lines.clear();
  for (const auto& rung : table.certificates()) {
    lines.push_back(absl::StrFormat(
        "{\"outputs\": %d, \"inputs\": %d, \"segments\": %d, \"rows\": %d, \"us\": %.3f, "
        "\"offered\": %d, \"algorithm\": \"%s\"}",
        rung.shape.outputs, rung.shape.inputs, rung.shape.segments, rung.rows, rung.microseconds,
        rung.offered, Describe(rung.traits)));
  }
  absl::StrAppend(&json, absl::StrJoin(lines, ",\n"), "\n]");
  return json;
}

struct Record {
  double certify_seconds = 0;
  double load_seconds = 0;
  std::vector<Point> points;
};

absl::Status Write(const Flags& flags, const CertificateTable& table, const Record& record) {
  int driver = 0;
  testing::Must(cudaDriverGetVersion(&driver));
  std::ofstream file(flags.out);
  file << absl::StrFormat(
      "{\"context\": {\"gpu\": \"%s\", \"multiprocessors\": %d, \"cuda_driver\": %d, "
      "\"cublaslt\": %d, \"cublaslt_digest\": \"%s\", \"commit\": \"%s\", \"command\": \"%s\", "
      "\"certify_seconds\": %.2f, \"load_seconds\": %.3f},\n",
      table.environment().gpu, table.environment().multiprocessors, driver,
      table.environment().library_version, table.environment().library_digest, flags.commit,
      flags.command, record.certify_seconds, record.load_seconds);
  std::vector<std::string> lines;
  for (const Point& point : record.points) lines.push_back(Json(point));
  file << "\"points\": [\n" << absl::StrJoin(lines, ",\n") << "\n],\n" << Json(table) << "}\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", flags.out));
}

void Summarise(const std::vector<Point>& points) {
  for (const Layer& layer : AllLayers()) {
    double log_sum = 0;
    double least = 1e9;
    int least_rows = 0;
    int count = 0;
    for (const Point& point : points) {
      if (point.layer != layer.name) continue;
      log_sum += std::log(point.ratio());
      ++count;
      if (point.ratio() < least) {
        least = point.ratio();
        least_rows = point.rows;
      }
    }
    if (count == 0) continue;
    std::printf("%-8s geomean x%.3f of free, least x%.3f at M %d\n", layer.name.c_str(),
                std::exp(log_sum / count), least, least_rows);
  }
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

absl::Status Main(const Flags& flags) {
  LOCKSTEP_ASSIGN_OR_RETURN(const kernels::cuda::LtHandle handle, kernels::cuda::CreateLtHandle());
  std::vector<Layer> layers = AllLayers();
  if (!flags.layers.empty()) {
    std::erase_if(layers, [&](const Layer& layer) {
      return std::find(flags.layers.begin(), flags.layers.end(), layer.name) == flags.layers.end();
    });
  }
  kernels::cuda::CertificatesRequest request{
      .options = {.ladder = kernels::cuda::DefaultLadder(kRowsMax),
                  .workspace_bytes = kWorkspaceBytes,
                  .library = flags.library,
                  .own_kernels = flags.own_kernels},
      .path = flags.certificates};
  for (const Layer& layer : layers) request.shapes.push_back(layer.shape);
  Record record;
  auto begin = std::chrono::steady_clock::now();
  LOCKSTEP_ASSIGN_OR_RETURN(CertificateTable table,
                            kernels::cuda::LoadOrCertify(handle.get(), request));
  record.certify_seconds = Seconds(begin);
  if (!flags.certificates.empty()) {
    begin = std::chrono::steady_clock::now();
    LOCKSTEP_ASSIGN_OR_RETURN(table, kernels::cuda::LoadOrCertify(handle.get(), request));
    for (const Layer& layer : layers) {
      LOCKSTEP_RETURN_IF_ERROR(LinearPlan::Create(handle.get(), table, layer.shape).status());
    }
    record.load_seconds = Seconds(begin);
  }
  std::printf("certified in %.1f s, loaded in %.2f s; %d rungs, %d refused\n",
              record.certify_seconds, record.load_seconds,
              static_cast<int>(table.certificates().size()),
              static_cast<int>(table.refusals().size()));
  LinearBench bench(handle.get(), table, flags.pairs);
  for (const Layer& layer : layers) {
    LOCKSTEP_RETURN_IF_ERROR(bench.Run(layer, record.points));
    // What was measured so far is kept, should the rest not come to its end.
    LOCKSTEP_RETURN_IF_ERROR(Write(flags, table, record));
  }
  Summarise(record.points);
  return absl::OkStatus();
}

bool Parse(int argc, char** argv, Flags& flags) {
  flags.command = "cuda_linear_bench";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    absl::StrAppend(&flags.command, " ", argument);
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) return false;
    const std::string name = argument.substr(0, equals);
    const std::string value = argument.substr(equals + 1);
    if (name == "--out") {
      flags.out = value;
    } else if (name == "--commit") {
      flags.commit = value;
    } else if (name == "--certificates") {
      flags.certificates = value;
    } else if (name == "--layers") {
      flags.layers = absl::StrSplit(value, ',');
    } else if (name == "--kernels" && value == "library") {
      flags.own_kernels = std::nullopt;
    } else if (name == "--kernels" && value == "portable") {
      flags.library = false;
      flags.own_kernels = KernelPath::kPortable;
    } else if (name == "--kernels" && value == "all") {
      continue;
    } else if (name == "--pairs") {
      if (!absl::SimpleAtoi(value, &flags.pairs)) return false;
    } else {
      return false;
    }
  }
  return !flags.out.empty() && flags.pairs > 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Flags flags;
  if (!lockstep::bench::Parse(argc, argv, flags)) {
    std::fprintf(stderr, "usage: see the top of linear_bench.cc\n");
    return 2;
  }
  if (const std::string reason = lockstep::testing::WhyNoDevice(); !reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 1;
  }
  const absl::Status status = lockstep::bench::Main(flags);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
