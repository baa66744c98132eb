#include "kernels/cuda/linear/certifier.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/linear_mma.h"
#include "kernels/cuda/linear/linear_sm90.h"
#include "kernels/cuda/linear/linear_timing.h"
#include "kernels/cuda/linear/timed_graph.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

// A message about missing memory begins with it.
constexpr char kPurpose[] = "certification, which layers in a file of certificates are spared,";
// More algorithms than a library offers.
constexpr size_t kChoicesMax = 128;
// What another stream writes while products run.
constexpr size_t kBusyBytes = size_t{64} << 20;
// Certified algorithms that are timed again before one is chosen.
constexpr size_t kFinalists = 3;
constexpr int kFinalRounds = 7;
// Slower than the best so far by this factor, an algorithm is not looked at twice.
constexpr double kHopeless = 1.3;
constexpr double kTimedMicroseconds = 300;
// Of the kernel that runs ahead of each product that is timed: no operand has fewer elements.
constexpr int kAheadWidth = 64;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<int> DefaultLadder(int rows_max) {
  std::vector<int> ladder;
  for (const int rows : {1, 2, 4, 8, 16, 24, 32, 40, 48, 56}) ladder.push_back(rows);
  for (int rows = 64; rows < 256; rows += 16) ladder.push_back(rows);
  // Eight rungs per octave.
  for (int octave = 256; octave <= rows_max; octave *= 2) {
    for (int rows = octave; rows < 2 * octave; rows += octave / 8) ladder.push_back(rows);
  }
  std::erase_if(ladder, [&](int rows) { return rows >= rows_max; });
  ladder.push_back(rows_max);
  return ladder;
}

// Operands and results of the shape in work.
struct Certifier::ShapeData {
  LinearShape shape;
  int rows = 0;  // Of x and the reference: kinds more than the longest rung has.
  Buffer weight;
  Buffer x;
  Buffer bias;
  Buffer reference;  // Of the product.
  Buffer combined;   // Of y, with several segments.
  Buffer product;
  Buffer workspace;
  Buffer counters;
  Buffer busy;
  std::optional<LinearTiming> timing;

  size_t stride() const {
    return static_cast<size_t>(shape.segments == 1 ? shape.y_stride : shape.outputs);
  }
  size_t ProductBytes(int product_rows) const {
    return static_cast<size_t>(shape.segments) * static_cast<size_t>(product_rows) * stride() *
           SizeOf(ProductType(shape));
  }
};

Certifier::Certifier(cublasLtHandle_t handle, CertifierOptions options)
    : handle_(handle), options_(std::move(options)) {}

Certifier::~Certifier() = default;

absl::StatusOr<std::unique_ptr<Certifier>> Certifier::Create(cublasLtHandle_t handle,
                                                             CertifierOptions options) {
  if (options.ladder.empty() || !std::is_sorted(options.ladder.begin(), options.ladder.end())) {
    return absl::InvalidArgumentError("certification needs an ascending ladder of rows");
  }
  std::unique_ptr<Certifier> certifier(new Certifier(handle, std::move(options)));
  LOCKSTEP_ASSIGN_OR_RETURN(certifier->stream_, CreateStream());
  LOCKSTEP_ASSIGN_OR_RETURN(certifier->busy_stream_, CreateStream());
  LOCKSTEP_ASSIGN_OR_RETURN(certifier->poisoned_, CreateEvent());
  return certifier;
}

absl::Status Certifier::Prepare(const LinearShape& shape) {
  if (data_ != nullptr && data_->shape == shape) return absl::OkStatus();
  if (!IsSupported(shape)) {
    return absl::InvalidArgumentError(absl::StrCat("linear layer of ", shape.outputs, " x ",
                                                   shape.inputs, " in ", shape.segments,
                                                   " segments is not supported"));
  }
  data_.reset();
  auto data = std::make_unique<ShapeData>();
  data->shape = shape;
  data->rows = options_.ladder.back() + kAdversarialKinds;
  const auto allocate = [&](Buffer& buffer, size_t bytes) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(buffer, AllocateDevice(bytes, kPurpose));
    return absl::OkStatus();
  };
  const size_t x_elements = static_cast<size_t>(data->rows) * static_cast<size_t>(shape.x_stride);
  const size_t outputs = static_cast<size_t>(shape.outputs);
  const size_t bytes = SizeOf(DType::kBf16);
  LOCKSTEP_RETURN_IF_ERROR(
      allocate(data->weight, outputs * static_cast<size_t>(shape.inputs) * bytes));
  LOCKSTEP_RETURN_IF_ERROR(allocate(data->x, x_elements * bytes));
  LOCKSTEP_RETURN_IF_ERROR(allocate(data->bias, outputs * bytes));
  LOCKSTEP_RETURN_IF_ERROR(allocate(data->reference, data->ProductBytes(data->rows)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(data->product, data->ProductBytes(data->rows)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(data->workspace, options_.workspace_bytes));
  LOCKSTEP_RETURN_IF_ERROR(allocate(data->counters, kChoicesMax * sizeof(unsigned long long)));
  LOCKSTEP_RETURN_IF_ERROR(allocate(data->busy, kBusyBytes));
  cudaStream_t stream = stream_.get();
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      FillAdversarialWeight(data->weight.as<void>(), shape.outputs, shape.inputs, stream),
      "adversarial weight"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      FillAdversarialX(data->x.as<void>(), data->rows, shape.inputs, shape.x_stride, stream),
      "adversarial rows"));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(FillUniform(data->bias.as<void>(), outputs, 5, stream), "adversarial bias"));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(LinearReference({.shape = shape,
                                    .rows = data->rows,
                                    .weight = data->weight.as<void>(),
                                    .bias = shape.bias ? data->bias.as<void>() : nullptr,
                                    .x = data->x.as<void>(),
                                    .product = data->reference.as<void>()},
                                   stream),
                   "reference"));
  if (shape.segments > 1) {
    LOCKSTEP_RETURN_IF_ERROR(allocate(data->combined, static_cast<size_t>(data->rows) *
                                                          static_cast<size_t>(shape.y_stride) *
                                                          SizeOf(shape.output)));
    LOCKSTEP_RETURN_IF_ERROR(
        StatusOfCuda(LinearCombine({.shape = shape,
                                    .rows = data->rows,
                                    .partials = data->reference.as<void>(),
                                    .partial_stride = static_cast<size_t>(data->rows) * outputs,
                                    .bias = shape.bias ? data->bias.as<void>() : nullptr,
                                    .y = data->combined.as<void>()},
                                   stream),
                     "reference"));
  }
  const int longest = options_.ladder.back();
  const size_t scratch = options_.workspace_bytes +
                         (shape.segments > 1 ? data->ProductBytes(longest) : 0) +
                         2 * kLinearAlignment;
  LOCKSTEP_ASSIGN_OR_RETURN(data->timing, LinearTiming::Create(shape, longest, scratch, stream));
  data_ = std::move(data);
  return absl::OkStatus();
}

// The library's estimate is often wrong at one number of rows and right at another nearby: what it
// offers around here is tried here too.
absl::StatusOr<std::vector<LinearRung::Choice>> Certifier::LibraryChoicesAt(int rows) const {
  static constexpr double kNearby[] = {1, 0.97, 0.8, 0.9, 1.1};
  // Where a product takes long, it fills the GPU whatever the tile, and looking takes long too.
  static constexpr int kManyRows = 1024;
  const LinearShape& shape = data_->shape;
  LOCKSTEP_ASSIGN_OR_RETURN(const LtMatmul here, LtMatmul::Create(handle_, shape, rows));
  std::vector<LinearRung::Choice> choices;
  for (const double factor : kNearby) {
    if (rows > kManyRows && factor < 0.97) break;
    const int nearby = std::max(1, static_cast<int>(rows * factor));
    LOCKSTEP_ASSIGN_OR_RETURN(const LtMatmul matmul, LtMatmul::Create(handle_, shape, nearby));
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<LtMatmul::Offer> offers,
                              matmul.Offers(LtMatmul::Reductions::kNone, options_.workspace_bytes));
    if (options_.any_order) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::vector<LtMatmul::Offer> more,
          matmul.Offers(LtMatmul::Reductions::kAny, options_.workspace_bytes));
      offers.insert(offers.end(), more.begin(), more.end());
    }
    for (const LtMatmul::Offer& offer : offers) {
      const AlgorithmTraits traits = TraitsOf(offer.algorithm);
      const bool known = std::any_of(choices.begin(), choices.end(),
                                     [&](const auto& choice) { return choice.traits == traits; });
      const absl::StatusOr<size_t> workspace_bytes = here.Check(offer.algorithm);
      if (known || !workspace_bytes.ok() || *workspace_bytes > options_.workspace_bytes) continue;
      choices.push_back({.traits = traits,
                         .algorithm = OpaqueOf(offer.algorithm),
                         .workspace_bytes = *workspace_bytes});
    }
  }
  return choices;
}

std::vector<LinearRung::Choice> Certifier::OwnChoicesAt(int rows) const {
  std::vector<LinearRung::Choice> choices;
  const auto add = [&](LinearEngine engine, const auto& tilings) {
    for (size_t i = 0; i < tilings.size(); ++i) {
      if (!Fits(tilings[i], data_->shape, rows)) continue;
      choices.push_back(
          {.traits = {.engine = engine, .id = static_cast<int>(i), .tile = tilings[i].rows}});
    }
  };
  if (options_.own_kernels == KernelPath::kSm90) add(LinearEngine::kSm90, Sm90Tilings());
  if (options_.own_kernels == KernelPath::kPortable) add(LinearEngine::kMma, MmaTilings());
  return choices;
}

// From now on the stream's next call finds memory busy, for about as long as it takes.
absl::Status Certifier::KeepMemoryBusy(int rows) {
  static constexpr double kBytesPerMicrosecond = 4e6;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaEventRecord(poisoned_.get(), stream_.get()), "poisoned"));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaStreamWaitEvent(busy_stream_.get(), poisoned_.get()), "busy stream"));
  const double microseconds = LinearTiming::FloorMicroseconds(data_->shape, rows);
  const int turns = 1 + static_cast<int>(microseconds * kBytesPerMicrosecond / kBusyBytes);
  for (int turn = 0; turn < turns; ++turn) {
    LOCKSTEP_RETURN_IF_ERROR(
        StatusOfCuda(cudaMemsetAsync(data_->busy.as<void>(), turn, kBusyBytes, busy_stream_.get()),
                     "busy stream"));
  }
  return absl::OkStatus();
}

// One product of the rows from `first_row` on, into poisoned memory.
absl::Status Certifier::Compare(const LinearRung& rung, int first_row, bool beside_busy_memory,
                                unsigned long long* differing) {
  const ShapeData& data = *data_;
  const LinearShape& shape = data.shape;
  cudaStream_t stream = stream_.get();
  void* product = data.product.as<void>();
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaMemsetAsync(product, 0xFF, data.ProductBytes(rung.rows()), stream), "poison"));
  if (beside_busy_memory) LOCKSTEP_RETURN_IF_ERROR(KeepMemoryBusy(rung.rows()));
  const size_t x_offset = static_cast<size_t>(first_row) * static_cast<size_t>(shape.x_stride);
  LOCKSTEP_RETURN_IF_ERROR(rung.EnqueueProduct(
      {.weight = data.weight.as<void>(),
       .bias = shape.bias && shape.segments == 1 ? data.bias.as<void>() : nullptr,
       .x = data.x.as<uint16_t>() + x_offset,
       .product = product,
       .workspace = data.workspace.as<void>(),
       .workspace_bytes = data.workspace.bytes()},
      stream));
  if (options_.disturb) {
    LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(options_.disturb(product, stream), "disturb"));
  }
  const size_t element = SizeOf(ProductType(shape));
  for (int segment = 0; segment < shape.segments; ++segment) {
    const size_t rows_before = static_cast<size_t>(segment) * static_cast<size_t>(rung.rows());
    const size_t reference_rows_before =
        static_cast<size_t>(segment) * static_cast<size_t>(data.rows) +
        static_cast<size_t>(first_row);
    LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
        CountDifferences(
            {.a = data.product.as<uint8_t>() + rows_before * data.stride() * element,
             .b = data.reference.as<uint8_t>() + reference_rows_before * data.stride() * element,
             .a_stride = data.stride(),
             .b_stride = data.stride(),
             .rows = rung.rows(),
             .columns = shape.outputs,
             .type = ProductType(shape)},
            differing, stream),
        "comparison"));
  }
  return absl::OkStatus();
}

// The same of a kernel that has no product apart: y itself is compared.
absl::Status Certifier::CompareLayer(const LinearRung& rung, int first_row, bool beside_busy_memory,
                                     unsigned long long* differing) {
  const ShapeData& data = *data_;
  const LinearShape& shape = data.shape;
  cudaStream_t stream = stream_.get();
  void* y = data.product.as<void>();
  const size_t stride = static_cast<size_t>(shape.y_stride);
  const size_t element = SizeOf(shape.output);
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaMemsetAsync(y, 0xFF, static_cast<size_t>(rung.rows()) * stride * element, stream),
      "poison"));
  if (beside_busy_memory) LOCKSTEP_RETURN_IF_ERROR(KeepMemoryBusy(rung.rows()));
  LOCKSTEP_RETURN_IF_ERROR(
      rung.Enqueue({.weight = data.weight.as<void>(),
                    .bias = shape.bias ? data.bias.as<void>() : nullptr,
                    .rows = rung.rows(),
                    .x = data.x.as<uint16_t>() +
                         static_cast<size_t>(first_row) * static_cast<size_t>(shape.x_stride),
                    .y = y},
                   stream));
  if (options_.disturb) {
    LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(options_.disturb(y, stream), "disturb"));
  }
  const Buffer& reference = shape.segments > 1 ? data.combined : data.reference;
  return StatusOfCuda(CountDifferences({.a = y,
                                        .b = reference.as<uint8_t>() +
                                             static_cast<size_t>(first_row) * stride * element,
                                        .a_stride = stride,
                                        .b_stride = stride,
                                        .rows = rung.rows(),
                                        .columns = shape.outputs,
                                        .type = shape.output},
                                       differing, stream),
                      "comparison");
}

// Few rows hold few kinds of rows, so they are looked at from several first rows on. The last look
// is beside a stream that keeps memory busy.
absl::Status Certifier::Check(const LinearRung& rung, unsigned long long* differing,
                              uint64_t& compared) {
  static constexpr int kFirstRows[] = {0, 2, 6, 1, 0};
  const size_t looks = rung.rows() < kAdversarialKinds ? std::size(kFirstRows) : 2;
  for (size_t look = 0; look < looks; ++look) {
    const bool last = look + 1 == looks;
    const int first_row = last ? 0 : kFirstRows[look];
    LOCKSTEP_RETURN_IF_ERROR(rung.has_product() ? Compare(rung, first_row, last, differing)
                                                : CompareLayer(rung, first_row, last, differing));
    const int segments = rung.has_product() ? data_->shape.segments : 1;
    compared += static_cast<uint64_t>(rung.rows()) * static_cast<uint64_t>(data_->shape.outputs) *
                static_cast<uint64_t>(segments);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Certifier::Verdict>> Certifier::Examine(const LinearShape& shape,
                                                                   int rows) {
  if (rows > options_.ladder.back()) return absl::InvalidArgumentError("more rows than the ladder");
  LOCKSTEP_RETURN_IF_ERROR(Prepare(shape));
  std::vector<LinearRung::Choice> choices = OwnChoicesAt(rows);
  if (options_.library) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<LinearRung::Choice> offers, LibraryChoicesAt(rows));
    choices.insert(choices.begin(), offers.begin(), offers.end());
  }
  cudaStream_t stream = stream_.get();
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      cudaMemsetAsync(data_->counters.as<void>(), 0, data_->counters.bytes(), stream), "counters"));
  std::vector<Verdict> verdicts;
  for (const LinearRung::Choice& choice : choices) {
    if (verdicts.size() == kChoicesMax) break;
    const absl::StatusOr<LinearRung> rung = LinearRung::Create(handle_, shape, rows, choice);
    Verdict verdict{.choice = choice};
    // An offer that does not run is no offer.
    if (!rung.ok()) continue;
    LOCKSTEP_RETURN_IF_ERROR(
        Check(*rung, data_->counters.as<unsigned long long>() + verdicts.size(), verdict.compared));
    verdicts.push_back(verdict);
  }
  std::vector<unsigned long long> differing(kChoicesMax);
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemcpyAsync(differing.data(), data_->counters.as<void>(),
                                   data_->counters.bytes(), cudaMemcpyDeviceToHost, stream),
                   "counters"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaStreamSynchronize(stream), "certification"));
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaStreamSynchronize(busy_stream_.get()), "busy stream"));
  for (size_t i = 0; i < verdicts.size(); ++i) {
    verdicts[i].differing = options_.any_order ? 0 : differing[i];
  }
  LOCKSTEP_RETURN_IF_ERROR(TimeCertified(rows, verdicts));
  return verdicts;
}

// In a model a small kernel runs ahead of every product. Kernels that ask for weights before it has
// ended gain by that, and only there.
absl::Status Certifier::EnqueueAhead(cudaStream_t stream) {
  return StatusOfCuda(SwiGlu({.width = kAheadWidth,
                              .rows = 1,
                              .gate_up = data_->x.as<void>(),
                              .y = data_->product.as<void>()},
                             stream),
                      "kernel ahead of a product");
}

// A quick look at all, then a careful one at the fastest, in turns.
absl::Status Certifier::TimeCertified(int rows, std::vector<Verdict>& verdicts) {
  std::stable_partition(verdicts.begin(), verdicts.end(),
                        [](const Verdict& verdict) { return verdict.certified(); });
  std::vector<std::pair<Verdict, TimedGraph>> timed;
  size_t certified = 0;
  double best = 0;
  for (; certified < verdicts.size() && verdicts[certified].certified(); ++certified) {
    Verdict& verdict = verdicts[certified];
    LOCKSTEP_ASSIGN_OR_RETURN(const LinearRung rung,
                              LinearRung::Create(handle_, data_->shape, rows, verdict.choice));
    LOCKSTEP_ASSIGN_OR_RETURN(
        TimedGraph graph, data_->timing->Graph(rows, kTimedMicroseconds,
                                               [&](const LinearCall& call, cudaStream_t stream) {
                                                 LOCKSTEP_RETURN_IF_ERROR(EnqueueAhead(stream));
                                                 return rung.Enqueue(call, stream);
                                               }));
    LOCKSTEP_ASSIGN_OR_RETURN(verdict.microseconds, graph.Replay());
    if (certified == 0) best = verdict.microseconds;
    for (int look = 0; look < 2 && verdict.microseconds < kHopeless * best; ++look) {
      LOCKSTEP_ASSIGN_OR_RETURN(const double microseconds, graph.Replay());
      verdict.microseconds = std::min(verdict.microseconds, microseconds);
    }
    best = std::min(best, verdict.microseconds);
    timed.emplace_back(verdict, std::move(graph));
  }
  const auto faster = [](const auto& a, const auto& b) {
    return a.first.microseconds < b.first.microseconds;
  };
  std::sort(timed.begin(), timed.end(), faster);
  const size_t finalists = std::min(kFinalists, timed.size());
  std::vector<std::vector<double>> rounds(finalists);
  for (int round = 0; round < kFinalRounds; ++round) {
    for (size_t i = 0; i < finalists; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(const double microseconds, timed[i].second.Replay());
      rounds[i].push_back(microseconds);
    }
  }
  for (size_t i = 0; i < finalists; ++i) timed[i].first.microseconds = Median(rounds[i]);
  std::sort(timed.begin(), timed.begin() + static_cast<ptrdiff_t>(finalists), faster);
  for (size_t i = 0; i < timed.size(); ++i) verdicts[i] = timed[i].first;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KernelNode>> Certifier::KernelsFor(const LinearRung& rung) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const TimedGraph graph,
      data_->timing->Graph(rung.rows(), 0, [&](const LinearCall& call, cudaStream_t stream) {
        return rung.Enqueue(call, stream);
      }));
  return graph.kernels();
}

absl::Status Certifier::Certify(const LinearShape& shape, CertificateTable& table) {
  std::vector<Certificate> ladder;
  for (const int rows : options_.ladder) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Verdict> verdicts, Examine(shape, rows));
    for (const Verdict& verdict : verdicts) {
      if (verdict.certified()) continue;
      table.Add(Refusal{.shape = shape,
                        .rows = rows,
                        .traits = verdict.choice.traits,
                        .differing = verdict.differing,
                        .compared = verdict.compared});
    }
    if (verdicts.empty() || !verdicts.front().certified()) {
      return absl::FailedPreconditionError(
          absl::StrCat("none of ", verdicts.size(), " algorithms for a linear layer of ",
                       shape.outputs, " x ", shape.inputs, " in ", shape.segments, " segments at ",
                       rows, " rows gives the reference's bits"));
    }
    const Verdict& best = verdicts.front();
    LOCKSTEP_ASSIGN_OR_RETURN(const LinearRung rung,
                              LinearRung::Create(handle_, shape, rows, best.choice));
    LOCKSTEP_ASSIGN_OR_RETURN(std::vector<KernelNode> kernels, KernelsFor(rung));
    ladder.push_back({.shape = shape,
                      .rows = rows,
                      .workspace_bytes = best.choice.workspace_bytes,
                      .traits = best.choice.traits,
                      .algorithm = best.choice.algorithm,
                      .microseconds = best.microseconds,
                      .offered = static_cast<int>(verdicts.size()),
                      .kernels = std::move(kernels)});
  }
  // From the top down: a rung that is no faster than the next is left out.
  std::vector<Certificate> kept;
  for (auto rung = ladder.rbegin(); rung != ladder.rend(); ++rung) {
    if (kept.empty() || rung->microseconds < options_.gain * kept.back().microseconds) {
      kept.push_back(std::move(*rung));
    }
  }
  for (auto rung = kept.rbegin(); rung != kept.rend(); ++rung) table.Add(std::move(*rung));
  return absl::OkStatus();
}

absl::StatusOr<CertificateTable> LoadOrCertify(cublasLtHandle_t handle,
                                               const CertificatesRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const CertificateEnvironment environment, CurrentEnvironment());
  CertificateTable table(environment);
  if (!request.path.empty()) {
    absl::StatusOr<CertificateTable> loaded = CertificateTable::Load(request.path);
    // A file of another environment, or one that cannot be read, is written anew.
    if (loaded.ok() && loaded->environment() == environment) table = *std::move(loaded);
  }
  std::unique_ptr<Certifier> certifier;
  for (const LinearShape& shape : request.shapes) {
    // A ladder that ends below these rows would cut their calls into pieces.
    const auto ladder = table.Ladder(shape);
    if (!ladder.empty() && ladder.back()->rows >= request.options.ladder.back()) continue;
    table.Remove(shape);
    if (certifier == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(certifier, Certifier::Create(handle, request.options));
    }
    LOCKSTEP_RETURN_IF_ERROR(certifier->Certify(shape, table));
  }
  if (certifier != nullptr && !request.path.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(table.Save(request.path));
  }
  return table;
}

}  // namespace lockstep::kernels::cuda
