#include "tests/gpu/row_ops_rig.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/row_reference.h"
#include "tests/support/philox_data.h"

namespace lockstep::testing {
namespace {

namespace cuda = kernels::cuda;

constexpr float kEpsilon = 1e-6f;
// Elements between rows that an op must leave alone.
constexpr size_t kGap = 8;

size_t Size(int count) { return static_cast<size_t>(count); }

// Columns [begin, begin + count) of all rows, as bf16.
std::vector<uint16_t> Columns(const std::vector<float>& in, size_t width, size_t begin,
                              size_t count) {
  std::vector<float> part;
  for (size_t row = 0; row < in.size(); row += width) {
    part.insert(part.end(), in.begin() + static_cast<ptrdiff_t>(row + begin),
                in.begin() + static_cast<ptrdiff_t>(row + begin + count));
  }
  return Bf16Data(part);
}

// Rows with kGap poisoned elements behind each.
std::vector<uint16_t> WithGaps(const std::vector<uint16_t>& rows, size_t width) {
  std::vector<uint16_t> spread;
  for (size_t at = 0; at < rows.size(); at += width) {
    spread.insert(spread.end(), rows.begin() + static_cast<ptrdiff_t>(at),
                  rows.begin() + static_cast<ptrdiff_t>(at + width));
    spread.resize(spread.size() + kGap, 0xFFFF);
  }
  return spread;
}

std::vector<float> WithoutGaps(const std::vector<uint16_t>& spread, size_t width) {
  std::vector<uint16_t> rows;
  for (size_t at = 0; at < spread.size(); at += width + kGap) {
    const auto begin = spread.begin() + static_cast<ptrdiff_t>(at);
    const auto end = begin + static_cast<ptrdiff_t>(width);
    rows.insert(rows.end(), begin, end);
    LOCKSTEP_CHECK(std::all_of(end, end + kGap, [](uint16_t v) { return v == 0xFFFF; }))
        << "an op wrote between rows";
  }
  return FloatsOfBf16(rows);
}

std::vector<float> Bf16Values(uint32_t stream, int count, float scale) {
  return FloatsOfBf16(Bf16Data(UniformData(stream, Size(count), scale)));
}

class RmsNormOp : public RowOp {
 public:
  explicit RmsNormOp(int width) : width_(Size(width)), weight_(Bf16Values(90, width, 2)) {}

  std::string name() const override { return absl::StrCat("RmsNorm of ", width_); }
  size_t in_width() const override { return width_; }
  size_t out_width() const override { return width_; }
  void Load(const std::vector<float>& in) override {
    x_ = std::make_unique<DeviceArray<uint16_t>>(WithGaps(Bf16Data(in), width_));
    y_ = std::make_unique<DeviceArray<uint16_t>>(x_->size());
  }
  void Enqueue(cudaStream_t stream) override {
    Must(cuda::RmsNorm({.weight = device_weight_.data(),
                        .epsilon = kEpsilon,
                        .width = static_cast<int>(width_),
                        .rows = static_cast<int>(x_->size() / (width_ + kGap)),
                        .x = x_->data(),
                        .x_stride = width_ + kGap,
                        .y = y_->data(),
                        .y_stride = width_ + kGap},
                       stream));
  }
  std::vector<float> Read() override { return WithoutGaps(y_->Read(), width_); }
  std::vector<float> Expected(std::span<const float> in) const override {
    return RmsNormOfRow(in, weight_, kEpsilon);
  }

 private:
  size_t width_;
  std::vector<float> weight_;
  DeviceArray<float> device_weight_{weight_};
  std::unique_ptr<DeviceArray<uint16_t>> x_;
  std::unique_ptr<DeviceArray<uint16_t>> y_;
};

class ResidualNormOp : public RowOp {
 public:
  ResidualNormOp(int width, int segments, bool bias)
      : width_(Size(width)), segments_(segments), weight_(Bf16Values(91, width, 2)) {
    if (!bias) return;
    bias_ = Bf16Values(92, width, 1);
    device_bias_ = std::make_unique<DeviceArray<uint16_t>>(Bf16Data(bias_));
  }

  std::string name() const override {
    return absl::StrCat("ResidualRmsNorm of ", width_, " in ", segments_, " segments",
                        bias_.empty() ? "" : " with bias");
  }
  size_t in_width() const override { return width_ * (1 + Size(segments_)); }
  size_t bf16_width() const override { return segments_ == 1 ? in_width() : width_; }
  size_t out_width() const override { return 2 * width_; }
  void Load(const std::vector<float>& in) override {
    rows_ = in.size() / in_width();
    residual_ = std::make_unique<DeviceArray<uint16_t>>(
        WithGaps(Columns(in, in_width(), 0, width_), width_));
    y_ = std::make_unique<DeviceArray<uint16_t>>(residual_->size());
    if (segments_ == 1) {
      update_ = std::make_unique<DeviceArray<uint16_t>>(Columns(in, in_width(), width_, width_));
      return;
    }
    std::vector<float> partials(Size(segments_) * rows_ * width_);
    for (size_t row = 0; row < rows_; ++row) {
      for (size_t s = 0; s < Size(segments_); ++s) {
        std::copy_n(in.begin() + static_cast<ptrdiff_t>(row * in_width() + (1 + s) * width_),
                    width_, partials.begin() + static_cast<ptrdiff_t>((s * rows_ + row) * width_));
      }
    }
    partials_ = std::make_unique<DeviceArray<float>>(partials);
  }
  void Enqueue(cudaStream_t stream) override {
    Must(cuda::ResidualRmsNorm({.norm = {.weight = device_weight_.data(),
                                         .epsilon = kEpsilon,
                                         .width = static_cast<int>(width_),
                                         .rows = static_cast<int>(rows_),
                                         .y = y_->data(),
                                         .y_stride = width_ + kGap},
                                .residual = residual_->data(),
                                .residual_stride = width_ + kGap,
                                .segments = segments_,
                                .update = update_ == nullptr ? nullptr : update_->data(),
                                .partials = partials_ == nullptr ? nullptr : partials_->data(),
                                .partial_stride = rows_ * width_,
                                .bias = device_bias_ == nullptr ? nullptr : device_bias_->data()},
                               stream));
  }
  std::vector<float> Read() override {
    const std::vector<float> residual = WithoutGaps(residual_->Read(), width_);
    const std::vector<float> y = WithoutGaps(y_->Read(), width_);
    std::vector<float> out;
    for (size_t at = 0; at < y.size(); at += width_) {
      for (const auto* part : {&residual, &y}) {
        out.insert(out.end(), part->begin() + static_cast<ptrdiff_t>(at),
                   part->begin() + static_cast<ptrdiff_t>(at + width_));
      }
    }
    return out;
  }
  std::vector<float> Expected(std::span<const float> in) const override {
    std::vector<float> out = ResidualSumOfRow(in.first(width_), in.subspan(width_), bias_);
    const std::vector<float> y = RmsNormOfRow(out, weight_, kEpsilon);
    out.insert(out.end(), y.begin(), y.end());
    return out;
  }

 private:
  size_t width_;
  int segments_;
  size_t rows_ = 0;
  std::vector<float> weight_;
  std::vector<float> bias_;
  DeviceArray<float> device_weight_{weight_};
  std::unique_ptr<DeviceArray<uint16_t>> device_bias_;
  std::unique_ptr<DeviceArray<uint16_t>> residual_;
  std::unique_ptr<DeviceArray<uint16_t>> update_;
  std::unique_ptr<DeviceArray<float>> partials_;
  std::unique_ptr<DeviceArray<uint16_t>> y_;
};

class SwiGluOp : public RowOp {
 public:
  explicit SwiGluOp(int width) : width_(Size(width)), silu_(SiluOfEveryInput()) {}

  std::string name() const override { return absl::StrCat("SwiGlu of ", width_); }
  size_t in_width() const override { return 2 * width_; }
  size_t out_width() const override { return width_; }
  void Load(const std::vector<float>& in) override {
    gate_up_ = std::make_unique<DeviceArray<uint16_t>>(Bf16Data(in));
    y_ = std::make_unique<DeviceArray<uint16_t>>(in.size() / 2);
  }
  void Enqueue(cudaStream_t stream) override {
    Must(cuda::SwiGlu({.width = static_cast<int>(width_),
                       .rows = static_cast<int>(y_->size() / width_),
                       .gate_up = gate_up_->data(),
                       .y = y_->data()},
                      stream));
  }
  std::vector<float> Read() override { return FloatsOfBf16(y_->Read()); }
  std::vector<float> Expected(std::span<const float> in) const override {
    std::vector<float> out;
    for (size_t i = 0; i < width_; ++i) {
      const float silu = silu_[std::bit_cast<uint32_t>(in[i]) >> 16];
      out.push_back(RoundedToBf16(silu * in[width_ + i]));
    }
    return out;
  }

 private:
  size_t width_;
  std::vector<float> silu_;
  std::unique_ptr<DeviceArray<uint16_t>> gate_up_;
  std::unique_ptr<DeviceArray<uint16_t>> y_;
};

class QkvPrepareOp : public RowOp {
 public:
  explicit QkvPrepareOp(const HeadShape& shape) : shape_(shape) {
    // Angles of some position; a table of kPositions in which only its row is a number.
    for (int i = 0; i < dim() / 2; ++i) {
      const double angle = kPosition * std::pow(10000.0, -2.0 * i / dim());
      rope_.push_back(static_cast<float>(std::cos(angle)));
    }
    for (int i = 0; i < dim() / 2; ++i) {
      const double angle = kPosition * std::pow(10000.0, -2.0 * i / dim());
      rope_.push_back(static_cast<float>(std::sin(angle)));
    }
    std::vector<float> table(Size(kPosition * dim()), NAN);
    table.insert(table.end(), rope_.begin(), rope_.end());
    table_.Load(table);
    q_norm_ = Bf16Values(93, dim(), 4);
    k_norm_ = Bf16Values(94, dim(), 4);
    device_q_norm_.Load(q_norm_);
    device_k_norm_.Load(k_norm_);
  }

  std::string name() const override {
    return absl::StrCat("QkvPrepare of ", shape_.q_heads, "/", shape_.kv_heads, " heads of ",
                        shape_.head_dim, shape_.q_norm ? ", q norm" : "",
                        shape_.k_norm ? ", k norm" : "");
  }
  size_t in_width() const override {
    return Size((shape_.q_heads + 2 * shape_.kv_heads) * shape_.head_dim);
  }
  size_t out_width() const override { return in_width(); }
  void Load(const std::vector<float>& in) override {
    rows_ = static_cast<int>(in.size() / in_width());
    qkv_ = std::make_unique<DeviceArray<uint16_t>>(Bf16Data(in));
    pool_ = std::make_unique<DeviceArray<uint16_t>>(Size(rows_) * PageElements());
    positions_ =
        std::make_unique<DeviceArray<int32_t>>(std::vector<int32_t>(Size(rows_), kPosition));
    std::vector<int32_t> sequences;
    std::vector<int32_t> block_table;
    for (int row = 0; row < rows_; ++row) {
      sequences.push_back(row);
      // The page before the position's is nobody's.
      for (int page = 0; page <= kPosition / cuda::kPageTokens; ++page) block_table.push_back(-1);
      block_table.back() = rows_ - 1 - row;
    }
    sequences_ = std::make_unique<DeviceArray<int32_t>>(sequences);
    block_table_ = std::make_unique<DeviceArray<int32_t>>(block_table);
  }
  void Enqueue(cudaStream_t stream) override {
    Must(cuda::QkvPrepare({.args = {.shape = {.rows = rows_,
                                              .sequences = rows_,
                                              .blocks_max = kPosition / cuda::kPageTokens + 1},
                                    .inputs = {.positions = positions_->data(),
                                               .row_sequence = sequences_->data(),
                                               .block_table = block_table_->data()},
                                    .q_heads = shape_.q_heads,
                                    .kv_heads = shape_.kv_heads,
                                    .head_dim = dim(),
                                    .q_norm = shape_.q_norm ? device_q_norm_.data() : nullptr,
                                    .k_norm = shape_.k_norm ? device_k_norm_.data() : nullptr,
                                    .epsilon = kEpsilon,
                                    .rope_table = table_.data(),
                                    .qkv = qkv_->data(),
                                    .layer = 1},
                           .pool = Pool()},
                          stream));
  }
  std::vector<float> Read() override {
    const std::vector<uint16_t> qkv = qkv_->Read();
    std::vector<uint16_t> pool = pool_->Read();
    std::vector<uint16_t> out;
    for (int row = 0; row < rows_; ++row) {
      const auto q = qkv.begin() + static_cast<ptrdiff_t>(Size(row) * in_width());
      out.insert(out.end(), q, q + shape_.q_heads * dim());
      for (const cuda::KvSide side : {cuda::KvSide::kKeys, cuda::KvSide::kValues}) {
        for (int head = 0; head < shape_.kv_heads; ++head) {
          const size_t tile = cuda::KvTileOffset(Pool(), rows_ - 1 - row, 1, head, side);
          for (int d = 0; d < dim(); ++d) {
            const size_t at = tile + Size(cuda::KvElementOffset(kPosition % cuda::kPageTokens, d));
            out.push_back(pool[at]);
            pool[at] = 0xFFFF;
          }
        }
      }
    }
    LOCKSTEP_CHECK(std::all_of(pool.begin(), pool.end(), [](uint16_t v) { return v == 0xFFFF; }))
        << "a row wrote beyond its own slot";
    return FloatsOfBf16(out);
  }
  std::vector<float> Expected(std::span<const float> in) const override {
    std::vector<float> out;
    for (int head = 0; head < shape_.q_heads + 2 * shape_.kv_heads; ++head) {
      const std::span<const float> x = in.subspan(Size(head * dim()), Size(dim()));
      std::vector<float> y(x.begin(), x.end());
      const bool is_query = head < shape_.q_heads;
      if (head < shape_.q_heads + shape_.kv_heads) {
        if (is_query ? shape_.q_norm : shape_.k_norm) {
          y = RmsNormOfRow(x, is_query ? q_norm_ : k_norm_, kEpsilon);
        }
        y = RotatedHead(y, rope_);
      }
      out.insert(out.end(), y.begin(), y.end());
    }
    return out;
  }

 private:
  static constexpr int kPosition = 77;
  static constexpr int kLayers = 2;

  int dim() const { return shape_.head_dim; }
  size_t PageElements() const {
    return Size(kLayers * shape_.kv_heads) * 2 * cuda::KvTileElements(dim());
  }
  cuda::KvPool Pool() const {
    return {
        .data = pool_->data(), .layers = kLayers, .kv_heads = shape_.kv_heads, .head_dim = dim()};
  }

  HeadShape shape_;
  int rows_ = 0;
  std::vector<float> rope_;
  std::vector<float> q_norm_;
  std::vector<float> k_norm_;
  DeviceArray<float> table_{Size((kPosition + 1) * shape_.head_dim)};
  DeviceArray<float> device_q_norm_{Size(shape_.head_dim)};
  DeviceArray<float> device_k_norm_{Size(shape_.head_dim)};
  std::unique_ptr<DeviceArray<uint16_t>> qkv_;
  std::unique_ptr<DeviceArray<uint16_t>> pool_;
  std::unique_ptr<DeviceArray<int32_t>> positions_;
  std::unique_ptr<DeviceArray<int32_t>> sequences_;
  std::unique_ptr<DeviceArray<int32_t>> block_table_;
};

}  // namespace

std::vector<float> RowOp::Run(const std::vector<float>& in) {
  Load(in);
  Enqueue(nullptr);
  Must(cudaDeviceSynchronize());
  return Read();
}

std::unique_ptr<RowOp> MakeRmsNormOp(int width) { return std::make_unique<RmsNormOp>(width); }
std::unique_ptr<RowOp> MakeResidualNormOp(int width, int segments, bool bias) {
  return std::make_unique<ResidualNormOp>(width, segments, bias);
}
std::unique_ptr<RowOp> MakeSwiGluOp(int width) { return std::make_unique<SwiGluOp>(width); }
std::unique_ptr<RowOp> MakeQkvPrepareOp(const HeadShape& shape) {
  return std::make_unique<QkvPrepareOp>(shape);
}

std::vector<float> SiluOfEveryInput() {
  std::vector<uint16_t> gate_up;
  for (uint32_t bits = 0; bits < 0x10000; bits += 8) {
    for (uint32_t i = 0; i < 8; ++i) gate_up.push_back(static_cast<uint16_t>(bits + i));
    gate_up.resize(gate_up.size() + 8, 0x3F80);
  }
  const DeviceArray<uint16_t> in(gate_up);
  const DeviceArray<uint16_t> y(size_t{0x10000});
  Must(cuda::SwiGlu({.width = 8, .rows = 0x2000, .gate_up = in.data(), .y = y.data()}, nullptr));
  Must(cudaDeviceSynchronize());
  return FloatsOfBf16(y.Read());
}

}  // namespace lockstep::testing
