// Linear layer. x: [rows, inputs] fp32, weights: panels of 32 outputs (packed_linear.h), y:
// [rows, outputs] fp32. Order of one output: per segment an ascending chain of FMA from zero,
// segments combined by T, then + bias, then + y when accumulating, each rounded. Lanes are
// outputs, so neither vector width, tile, thread count nor the other rows can reach that order:
// placement-invariant.
#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/packed_linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kPanel = PackedLinear::kPanel;
// Rows of a strip and vectors of a tile: as many accumulators as the registers hold.
constexpr size_t kStrip = kLanes >= 16 ? 12 : 6;
constexpr size_t kTileVectors = kPanel / kLanes < 2 ? 1 : 2;
// Inputs per pass, so that a slice of a panel stays in the first-level cache.
constexpr size_t kSlice = 256;
// Strips per block of rows; a block's partial sums stay in the second-level cache.
constexpr size_t kBlockStrips = 20;

// Rows of x as the tile reads them: element (r, i) is data[r * row_stride + i * input_stride].
struct RowsView {
  const float* data;
  size_t row_stride;
  size_t input_stride;
};

// sums[r, 0..kPanel) += x[r, i] * w[i, :] for `inputs` ascending i, from zero when `fresh`.
template <size_t kRows, typename W>
HWY_INLINE void Tile(const RowsView& x, const W* HWY_RESTRICT w, size_t inputs, bool fresh,
                     float* HWY_RESTRICT sums) {
  for (size_t column = 0; column < kPanel; column += kTileVectors * kLanes) {
    VF acc[kRows][kTileVectors];
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kTileVectors; ++v) {
        acc[r][v] = fresh ? hn::Zero(F()) : hn::LoadU(F(), sums + r * kPanel + column + v * kLanes);
      }
    }
    const float* HWY_RESTRICT xi = x.data;
    const W* HWY_RESTRICT wi = w + column;
    for (size_t i = 0; i < inputs; ++i, xi += x.input_stride, wi += kPanel) {
      VF weights[kTileVectors];
      for (size_t v = 0; v < kTileVectors; ++v) weights[v] = LoadWeights(wi + v * kLanes);
      for (size_t r = 0; r < kRows; ++r) {
        const VF xr = hn::Set(F(), xi[r * x.row_stride]);
        for (size_t v = 0; v < kTileVectors; ++v) acc[r][v] = Fma(xr, weights[v], acc[r][v]);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kTileVectors; ++v) {
        hn::StoreU(acc[r][v], F(), sums + r * kPanel + column + v * kLanes);
      }
    }
  }
}

template <typename W, size_t kRows = kStrip>
HWY_INLINE void TileOfRows(size_t rows, const RowsView& x, const W* w, size_t inputs, bool fresh,
                           float* sums) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return Tile<kRows>(x, w, inputs, fresh, sums);
    TileOfRows<W, kRows - 1>(rows, x, w, inputs, fresh, sums);
  }
}

// What one call shares between its tasks.
struct Job {
  const LinearArgs& args;
  const PackedLinear& weight;
  // Strips of kStrip rows, [strip][input][kStrip]; null when one strip reads x in place.
  const float* packed_x;

  size_t rows() const { return static_cast<size_t>(args.rows); }
  size_t inputs() const { return static_cast<size_t>(weight.inputs()); }
  const float* x() const { return static_cast<const float*>(args.x); }

  RowsView Strip(size_t strip, size_t input) const {
    if (packed_x == nullptr) {
      return {x() + strip * kStrip * args.x_stride + input, args.x_stride, 1};
    }
    return {packed_x + (strip * inputs() + input) * kStrip, 1, kStrip};
  }
};

void PackStrip(const Job& job, size_t strip, float* HWY_RESTRICT packed) {
  const size_t inputs = job.inputs();
  const size_t first = strip * kStrip;
  const size_t rows = std::min(kStrip, job.rows() - first);
  for (size_t r = 0; r < rows; ++r) {
    const float* HWY_RESTRICT x = job.x() + (first + r) * job.args.x_stride;
    float* HWY_RESTRICT to = packed + strip * inputs * kStrip + r;
    for (size_t i = 0; i < inputs; ++i) to[i * kStrip] = x[i];
  }
}

// One slice of a panel in fp32: in place, or converted once for all strips of the block.
HWY_INLINE const float* SliceAsFloat(const float* w, size_t, float*) { return w; }
HWY_INLINE const float* SliceAsFloat(const uint16_t* w, size_t inputs, float* converted) {
  for (size_t i = 0; i < inputs * kPanel; i += kLanes) {
    hn::StoreU(LoadWeights(w + i), F(), converted + i);
  }
  return converted;
}

// Chains of one segment for the rows of a block.
template <typename W>
void SumSegment(const Job& job, const W* panel, size_t begin, size_t end, size_t strip_begin,
                size_t strip_end, float* converted, float* sums) {
  for (size_t i = begin; i < end; i += kSlice) {
    const size_t inputs = std::min(kSlice, end - i);
    const bool fresh = i == begin;
    if (strip_end - strip_begin <= 1) {
      const size_t rows = std::min(kStrip, job.rows() - strip_begin * kStrip);
      TileOfRows(rows, job.Strip(strip_begin, i), panel + i * kPanel, inputs, fresh, sums);
      continue;
    }
    const float* slice = SliceAsFloat(panel + i * kPanel, inputs, converted);
    for (size_t strip = strip_begin; strip < strip_end; ++strip) {
      const size_t rows = std::min(kStrip, job.rows() - strip * kStrip);
      TileOfRows(rows, job.Strip(strip, i), slice, inputs, fresh,
                 sums + (strip - strip_begin) * kStrip * kPanel);
    }
  }
}

// y = sums [+ bias] [+ y] for the rows of a block and one panel.
void WriteBlock(const Job& job, size_t panel, size_t row_begin, size_t row_end,
                const float* HWY_RESTRICT sums) {
  const size_t first = panel * kPanel;
  const size_t outputs = std::min(kPanel, static_cast<size_t>(job.weight.own_outputs()) - first);
  // What goes on to be added over ranks takes its bias behind that.
  const float* bias = job.weight.layout().reduced ? nullptr : job.weight.bias();
  for (size_t row = row_begin; row < row_end; ++row) {
    float* y = static_cast<float*>(job.args.y) + row * job.args.y_stride + first;
    const float* sum = sums + (row - row_begin) * kPanel;
    for (size_t o = 0; o < outputs; o += kLanes) {
      VF value = hn::LoadU(F(), sum + o);
      if (bias != nullptr) value = hn::Add(value, LoadFirst(bias + first + o, outputs - o));
      if (job.args.accumulate) value = hn::Add(value, LoadFirst(y + o, outputs - o));
      StoreFirst(value, y + o, outputs - o);
    }
  }
}

// One panel for one block of rows. The segments' sums meet in a binary counter, which is T.
template <typename W>
void RunTask(const Job& job, size_t panel, size_t strip_begin, size_t strip_end, float* scratch) {
  const ReductionOrder& order = job.weight.order();
  const size_t block = (strip_end - strip_begin) * kStrip * kPanel;
  float* const converted = scratch;
  float* const levels = scratch + kSlice * kPanel;
  uint32_t depth = 0;
  for (int s = 0; s < order.segments(); ++s) {
    float* sums = levels + depth * block;
    SumSegment(job, job.weight.panel<W>(static_cast<int>(panel)),
               static_cast<size_t>(order.segment_begin(s)),
               static_cast<size_t>(order.segment_end(s)), strip_begin, strip_end, converted, sums);
    ++depth;
    for (uint32_t carry = static_cast<uint32_t>(s); carry & 1; carry >>= 1) {
      --depth;
      const float* HWY_RESTRICT right = levels + depth * block;
      float* HWY_RESTRICT left = levels + (depth - 1) * block;
      for (size_t i = 0; i < block; i += kLanes) {
        hn::StoreU(hn::Add(hn::LoadU(F(), left + i), hn::LoadU(F(), right + i)), F(), left + i);
      }
    }
  }
  WriteBlock(job, panel, strip_begin * kStrip, std::min(strip_end * kStrip, job.rows()), levels);
}

void LinearImpl(OpContext& context, const LinearArgs& args, const PackedLinear& weight) {
  Job job{args, weight, nullptr};
  const size_t inputs = job.inputs();
  const size_t strips = (job.rows() + kStrip - 1) / kStrip;
  const size_t panels = static_cast<size_t>(weight.panels());
  // Enough tasks for every thread; how rows are cut does not reach the order of any sum.
  const size_t threads = static_cast<size_t>(context.pool.threads());
  const size_t blocks_wanted =
      std::max((4 * threads + panels - 1) / panels, (strips + kBlockStrips - 1) / kBlockStrips);
  const size_t block_strips = std::max<size_t>(1, strips / blocks_wanted);
  const size_t blocks = (strips + block_strips - 1) / block_strips;
  if (strips > 1) {
    float* packed = context.scratch.Shared<float>(strips * kStrip * inputs);
    const int64_t grain = static_cast<int64_t>(1 + (1 << 15) / (kStrip * inputs));
    context.pool.ParallelFor(static_cast<int64_t>(strips), grain,
                             [&](int64_t begin, int64_t end, int) {
                               for (int64_t strip = begin; strip < end; ++strip) {
                                 PackStrip(job, static_cast<size_t>(strip), packed);
                               }
                             });
    job.packed_x = packed;
  }
  const size_t levels =
      static_cast<size_t>(std::bit_width(static_cast<unsigned>(weight.order().segments())));
  const size_t scratch_floats = kSlice * kPanel + levels * block_strips * kStrip * kPanel;
  // Products that one thread forms in about the time that waking another takes.
  constexpr size_t kProductsPerThread = size_t{1} << 17;
  const size_t products = inputs * std::min(job.rows(), block_strips * kStrip) * kPanel;
  const int64_t grain = static_cast<int64_t>(1 + kProductsPerThread / products);
  context.pool.ParallelFor(
      static_cast<int64_t>(panels * blocks), grain,
      [&](int64_t begin, int64_t end, int thread) HWY_ATTR {
        float* scratch = context.scratch.OfThread<float>(thread, scratch_floats);
        for (int64_t task = begin; task < end; ++task) {
          const size_t strip_begin = static_cast<size_t>(task) / panels * block_strips;
          const size_t strip_end = std::min(strips, strip_begin + block_strips);
          const size_t panel = static_cast<size_t>(task) % panels;
          if (weight.dtype() == DType::kBf16) {
            RunTask<uint16_t>(job, panel, strip_begin, strip_end, scratch);
          } else {
            RunTask<float>(job, panel, strip_begin, strip_end, scratch);
          }
        }
      });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(LinearImpl);

void Linear(OpContext& context, const LinearArgs& args) {
  if (args.rows == 0) return;
  const auto& weight = static_cast<const PackedLinear&>(*args.weight);
  LOCKSTEP_CHECK(args.rows > 0 && args.x_stride >= static_cast<size_t>(weight.inputs()) &&
                 args.y_stride >= static_cast<size_t>(weight.own_outputs()))
      << "rows " << args.rows << ", strides " << args.x_stride << " and " << args.y_stride;
  HWY_DYNAMIC_DISPATCH(LinearImpl)(context, args, weight);
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
