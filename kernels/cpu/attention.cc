// Causal attention over the paged KV pool. qkv: [rows, (q_heads + 2 kv_heads) * head_dim] fp32, y:
// [rows, q_heads * head_dim]. For a row at position p: keys 0..p in blocks of 32 inside splits of
// split_kv_size counted from position 0. A score is an ascending chain of FMA over the head; a
// block's row sum is T over its 32 probabilities, masked ones being 0; P x V is an ascending chain
// of FMA over the keys; splits merge in ascending order. Nothing else about the row, the tile or
// the step reaches that order, so prefill, chunks and decode agree: placement-invariant.
#include <algorithm>
#include <atomic>
#include <limits>

#include "common/base/check.h"
#include "kernels/cpu/cpu_kv_cache.h"
#include "kernels/cpu/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kBlock = CpuKvCache::kBlockTokens;
// Queries of one tile read keys and values together, kGroup at a time in registers.
constexpr size_t kGroup = 4;
constexpr size_t kTile = 16;
constexpr size_t kTileVectors = 2;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A running softmax: row sum `sum` and weighted values `out` relative to the scaled maximum.
struct Running {
  float max = kMinusInfinity;  // Of the raw scores.
  float scaled_max = 0;        // RN(max * c).
  float sum = 0;
};

// One query: a row and a head.
struct Query {
  const float* q;
  float* y;
  size_t position;
  Running split;   // Of the split being read.
  Running merged;  // Of the splits before it.
};

struct Tile {
  const AttentionArgs& args;
  const CpuKvCache& kv;
  const int32_t* blocks;  // Block table of the sequence.
  int kv_head;
  size_t count = 0;
  Query* queries;     // Ascending by position.
  float* split_out;   // [kTile][head_dim]
  float* merged_out;  // [kTile][head_dim]

  size_t dim() const { return static_cast<size_t>(args.head_dim); }
};

// scores[i, 0..kBlock) = q_i . keys for kQueries queries.
template <size_t kQueries>
HWY_INLINE void Scores(const Query* queries, const float* HWY_RESTRICT keys, size_t dim,
                       float* HWY_RESTRICT scores) {
  for (size_t column = 0; column < kBlock; column += kTileVectors * kLanes) {
    VF acc[kQueries][kTileVectors];
    for (size_t i = 0; i < kQueries; ++i) {
      for (size_t v = 0; v < kTileVectors; ++v) acc[i][v] = hn::Zero(F());
    }
    for (size_t d = 0; d < dim; ++d) {
      VF k[kTileVectors];
      for (size_t v = 0; v < kTileVectors; ++v) {
        k[v] = hn::LoadU(F(), keys + d * kBlock + column + v * kLanes);
      }
      for (size_t i = 0; i < kQueries; ++i) {
        const VF q = Splat(queries[i].q[d]);
        for (size_t v = 0; v < kTileVectors; ++v) acc[i][v] = Fma(q, k[v], acc[i][v]);
      }
    }
    for (size_t i = 0; i < kQueries; ++i) {
      for (size_t v = 0; v < kTileVectors; ++v) {
        hn::StoreU(acc[i][v], F(), scores + i * kBlock + column + v * kLanes);
      }
    }
  }
}

// Dims [d, d + kTileVectors * kLanes) of AddValues; kWhole when the head has all of them.
template <size_t kQueries, bool kWhole>
HWY_INLINE void AddValuesAt(size_t d, const float* HWY_RESTRICT p, const float* HWY_RESTRICT values,
                            size_t begin, size_t end, size_t dim, float* HWY_RESTRICT out) {
  const auto load = [&](const float* from, size_t v) HWY_ATTR {
    const size_t lane = d + v * kLanes;
    if constexpr (kWhole) return hn::LoadU(F(), from + lane);
    return LoadFirst(from + std::min(lane, dim), dim - std::min(lane, dim));
  };
  VF acc[kQueries][kTileVectors];
  for (size_t i = 0; i < kQueries; ++i) {
    for (size_t v = 0; v < kTileVectors; ++v) acc[i][v] = load(out + i * dim, v);
  }
  for (size_t j = begin; j < end; ++j) {
    VF value[kTileVectors];
    for (size_t v = 0; v < kTileVectors; ++v) value[v] = load(values + j * dim, v);
    for (size_t i = 0; i < kQueries; ++i) {
      const VF weight = Splat(p[i * kBlock + j]);
      for (size_t v = 0; v < kTileVectors; ++v) acc[i][v] = Fma(weight, value[v], acc[i][v]);
    }
  }
  for (size_t i = 0; i < kQueries; ++i) {
    for (size_t v = 0; v < kTileVectors; ++v) {
      const size_t lane = std::min(d + v * kLanes, dim);
      StoreFirst(acc[i][v], out + i * dim + lane, dim - lane);
    }
  }
}

// out_i += sum over keys [begin, end), ascending, of p_i * value, for kQueries queries.
template <size_t kQueries>
HWY_INLINE void AddValues(const float* p, const float* values, size_t begin, size_t end, size_t dim,
                          float* out) {
  constexpr size_t kStep = kTileVectors * kLanes;
  size_t d = 0;
  for (; d + kStep <= dim; d += kStep) {
    AddValuesAt<kQueries, true>(d, p, values, begin, end, dim, out);
  }
  if (d < dim) AddValuesAt<kQueries, false>(d, p, values, begin, end, dim, out);
}

HWY_INLINE void ScaleVector(float factor, float* x, size_t dim) {
  for (size_t d = 0; d < dim; d += kLanes) {
    StoreFirst(hn::Mul(LoadFirst(x + d, dim - d), Splat(factor)), x + d, dim - d);
  }
}

HWY_INLINE float Exp2Of(float x) { return hn::GetLane(Exp2(Splat(x))); }

// Turns the raw scores of a block into probabilities, of which the first `valid` keys are not
// masked, and brings the split's running maximum, sum and output to the new scale.
HWY_INLINE void Softmax(float c, size_t valid, float* HWY_RESTRICT scores, Running& running,
                        float* HWY_RESTRICT out, size_t dim) {
  VF max_lanes = Splat(kMinusInfinity);
  for (size_t j = 0; j < valid; j += kLanes) {
    const VF s = hn::LoadU(F(), scores + j);
    const VF masked = valid - j >= kLanes
                          ? s
                          : hn::IfThenElse(hn::FirstN(F(), valid - j), s, Splat(kMinusInfinity));
    max_lanes = MaxOf(max_lanes, masked);
  }
  const float old_max = running.max;
  const float block_max = MaxOfLanes(max_lanes);
  if (old_max < block_max) {
    const float old_scaled = running.scaled_max;
    running.max = block_max;
    running.scaled_max = block_max * c;
    if (old_max != kMinusInfinity) {
      const float alpha = Exp2Of(old_scaled - running.scaled_max);
      running.sum = running.sum * alpha;
      ScaleVector(alpha, out, dim);
    }
  }
  const VF minus_max = Splat(-running.scaled_max);
  const float sum = TreeOver(kBlock, [&](size_t j) HWY_ATTR {
    VF p = Exp2(Fma(hn::LoadU(F(), scores + j), Splat(c), minus_max));
    if (j >= valid) {
      p = hn::Zero(F());
    } else if (valid - j < kLanes) {
      p = hn::IfThenElseZero(hn::FirstN(F(), valid - j), p);
    }
    hn::StoreU(p, F(), scores + j);
    return p;
  });
  running.sum = running.sum + sum;
}

// One KV block for queries [first, first + kQueries) of the tile.
template <size_t kQueries>
void BlockOfGroup(Tile& tile, size_t first, size_t block_begin, const float* keys,
                  const float* values, float c) {
  HWY_ALIGN float p[kQueries * kBlock];
  Query* queries = tile.queries + first;
  float* out = tile.split_out + first * tile.dim();
  Scores<kQueries>(queries, keys, tile.dim(), p);
  size_t valid[kQueries];
  for (size_t i = 0; i < kQueries; ++i) {
    valid[i] = std::min(kBlock, queries[i].position - block_begin + 1);
    Softmax(c, valid[i], p + i * kBlock, queries[i].split, out + i * tile.dim(), tile.dim());
  }
  // Positions ascend, so the first query has the fewest keys; the others finish alone.
  AddValues<kQueries>(p, values, 0, valid[0], tile.dim(), out);
  for (size_t i = 1; i < kQueries; ++i) {
    if (valid[i] > valid[0]) {
      AddValues<1>(p + i * kBlock, values, valid[0], valid[i], tile.dim(), out + i * tile.dim());
    }
  }
}

void Block(Tile& tile, size_t first, size_t block, float c) {
  const int physical = tile.blocks[block];
  const float* keys = tile.kv.keys(tile.args.layer, tile.kv_head, physical);
  const float* values = tile.kv.values(tile.args.layer, tile.kv_head, physical);
  const size_t begin = block * kBlock;
  for (; first + kGroup <= tile.count; first += kGroup) {
    BlockOfGroup<kGroup>(tile, first, begin, keys, values, c);
  }
  switch (tile.count - first) {
    case 1:
      return BlockOfGroup<1>(tile, first, begin, keys, values, c);
    case 2:
      return BlockOfGroup<2>(tile, first, begin, keys, values, c);
    case 3:
      return BlockOfGroup<3>(tile, first, begin, keys, values, c);
  }
}

// merged = merged (+) split: the first is a copy, then A = fma(a, y, RN(A * x)), sums likewise.
void MergeSplit(Tile& tile, size_t index, bool first, float c) {
  const size_t dim = tile.dim();
  Query& query = tile.queries[index];
  float* total = tile.merged_out + index * dim;
  const float* part = tile.split_out + index * dim;
  if (first) {
    query.merged = query.split;
    std::copy_n(part, dim, total);
    return;
  }
  const float max = std::max(query.merged.max, query.split.max);
  const float scaled_max = max * c;
  const float x = Exp2Of(query.merged.scaled_max - scaled_max);
  const float y = Exp2Of(query.split.scaled_max - scaled_max);
  const auto merge = [&](VF total_v, VF part_v)
                         HWY_ATTR { return Fma(part_v, Splat(y), hn::Mul(total_v, Splat(x))); };
  query.merged = {.max = max,
                  .scaled_max = scaled_max,
                  .sum = hn::GetLane(merge(Splat(query.merged.sum), Splat(query.split.sum)))};
  for (size_t d = 0; d < dim; d += kLanes) {
    StoreFirst(merge(LoadFirst(total + d, dim - d), LoadFirst(part + d, dim - d)), total + d,
               dim - d);
  }
}

void RunTile(Tile& tile) {
  const size_t dim = tile.dim();
  const float c = kLog2E / std::sqrt(static_cast<float>(tile.args.head_dim));
  const size_t split_blocks = static_cast<size_t>(tile.args.split_kv_size) / kBlock;
  const size_t last = tile.queries[tile.count - 1].position / kBlock;
  size_t first = 0;  // Queries before it have read all of their keys.
  for (size_t begin = 0; begin <= last; begin += split_blocks) {
    while (tile.queries[first].position < begin * kBlock) ++first;
    for (size_t i = first; i < tile.count; ++i) tile.queries[i].split = Running();
    std::fill(tile.split_out + first * dim, tile.split_out + tile.count * dim, 0.0f);
    size_t active = first;
    for (size_t block = begin; block <= std::min(last, begin + split_blocks - 1); ++block) {
      while (tile.queries[active].position < block * kBlock) ++active;
      Block(tile, active, block, c);
    }
    for (size_t i = first; i < tile.count; ++i) MergeSplit(tile, i, begin == 0, c);
  }
  for (size_t i = 0; i < tile.count; ++i) {
    const VF sum = Splat(tile.queries[i].merged.sum);
    for (size_t d = 0; d < dim; d += kLanes) {
      StoreFirst(hn::Div(LoadFirst(tile.merged_out + i * dim + d, dim - d), sum),
                 tile.queries[i].y + d, dim - d);
    }
  }
}

// Rows [row_begin, row_end) of one sequence, all q heads that share `kv_head`.
void AttendRows(const AttentionArgs& args, const CpuKvCache& kv, int sequence, int kv_head,
                size_t row_begin, size_t row_end, float* scratch) {
  const size_t dim = static_cast<size_t>(args.head_dim);
  const size_t q_heads = static_cast<size_t>(args.q_heads);
  const size_t group = q_heads / static_cast<size_t>(args.kv_heads);
  const size_t width = (q_heads + 2 * static_cast<size_t>(args.kv_heads)) * dim;
  Query queries[kTile];
  Tile tile{.args = args,
            .kv = kv,
            .blocks = args.inputs.block_table +
                      static_cast<size_t>(sequence) * static_cast<size_t>(args.shape.blocks_max),
            .kv_head = kv_head,
            .queries = queries,
            .split_out = scratch,
            .merged_out = scratch + kTile * dim};
  const auto flush = [&] {
    if (tile.count > 0) RunTile(tile);
    tile.count = 0;
  };
  for (size_t row = row_begin; row < row_end; ++row) {
    for (size_t g = 0; g < group; ++g) {
      const size_t head = static_cast<size_t>(kv_head) * group + g;
      if (tile.count == kTile) flush();
      queries[tile.count++] = {.q = static_cast<const float*>(args.qkv) + row * width + head * dim,
                               .y = static_cast<float*>(args.y) + (row * q_heads + head) * dim,
                               .position = static_cast<size_t>(args.inputs.positions[row])};
    }
  }
  flush();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(AttendRows);

namespace {

constexpr size_t kQueriesPerTask = HWY_NAMESPACE::kTile;

// One task: some rows of one sequence under one KV head.
struct AttentionTask {
  int32_t sequence;
  int32_t kv_head;
  int32_t row_begin;
  int32_t row_end;
};

size_t ListTasks(const AttentionArgs& args, int32_t rows_per_task, AttentionTask* tasks) {
  size_t count = 0;
  for (int32_t sequence = 0; sequence < args.shape.sequences; ++sequence) {
    const int32_t end = args.inputs.query_start[sequence + 1];
    for (int32_t row = args.inputs.query_start[sequence]; row < end; row += rows_per_task) {
      for (int32_t head = 0; head < args.kv_heads; ++head) {
        tasks[count++] = {sequence, head, row, std::min(end, row + rows_per_task)};
      }
    }
  }
  return count;
}

void ZeroPaddingRows(const AttentionArgs& args) {
  const size_t width = static_cast<size_t>(args.q_heads * args.head_dim);
  for (int row = 0; row < args.shape.rows; ++row) {
    if (args.inputs.row_sequence[row] >= 0) continue;
    std::fill_n(static_cast<float*>(args.y) + static_cast<size_t>(row) * width, width, 0.0f);
  }
}

}  // namespace

void Attention(OpContext& context, const AttentionArgs& args) {
  const auto& kv = static_cast<const CpuKvCache&>(*args.kv);
  LOCKSTEP_CHECK(args.split_kv_size > 0 && args.split_kv_size % CpuKvCache::kBlockTokens == 0)
      << "split_kv_size " << args.split_kv_size;
  LOCKSTEP_CHECK(kv.shape().head_dim == args.head_dim && kv.shape().kv_heads == args.kv_heads &&
                 args.q_heads % args.kv_heads == 0 && args.layer < kv.shape().layers)
      << "heads " << args.q_heads << "/" << args.kv_heads << " of " << args.head_dim;
  const int32_t group = args.q_heads / args.kv_heads;
  const int32_t rows_per_task = std::max(1, static_cast<int32_t>(kQueriesPerTask) / group);
  // A partly filled task per sequence and head at most, beside the full ones.
  const size_t tasks_max =
      static_cast<size_t>(args.kv_heads) *
      static_cast<size_t>(args.shape.rows / rows_per_task + args.shape.sequences + 1);
  AttentionTask* tasks = context.scratch.Shared<AttentionTask>(tasks_max);
  const size_t count = ListTasks(args, rows_per_task, tasks);
  ZeroPaddingRows(args);
  // Tasks differ in length, so threads take the next one when free; a row's bits do not depend on
  // the thread. Late rows are the longest and go first.
  std::atomic<size_t> taken{0};
  context.pool.Run([&](int thread) {
    float* scratch = context.scratch.OfThread<float>(
        thread, 2 * kQueriesPerTask * static_cast<size_t>(args.head_dim));
    for (size_t i; (i = taken.fetch_add(1, std::memory_order_relaxed)) < count;) {
      const AttentionTask& task = tasks[count - 1 - i];
      HWY_DYNAMIC_DISPATCH(AttendRows)
      (args, kv, task.sequence, task.kv_head, static_cast<size_t>(task.row_begin),
       static_cast<size_t>(task.row_end), scratch);
    }
  });
}

}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
