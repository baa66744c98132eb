#include "tests/gpu/attention_rig.h"

#include <algorithm>
#include <bit>

#include "tests/gpu/gpu_test.h"
#include "tests/support/philox_data.h"

namespace lockstep::testing {
namespace {

namespace cuda = kernels::cuda;

constexpr uint16_t kNan = 0xFFFF;
// Scores of a few units in the exponent of 2, so that maxima move and probabilities vanish.
constexpr float kQueryScale = 8;

std::vector<uint16_t> Values(uint32_t stream, size_t count, float scale, float fill) {
  if (fill != 0) return Bf16Data(std::vector<float>(count, fill));
  return Bf16Data(UniformData(stream, count, scale));
}

std::vector<float> Widened(const std::vector<uint16_t>& all, size_t begin, size_t count) {
  return FloatsOfBf16({all.begin() + static_cast<ptrdiff_t>(begin),
                       all.begin() + static_cast<ptrdiff_t>(begin + count)});
}

size_t Size(int count) { return static_cast<size_t>(count); }

}  // namespace

AttentionRig::AttentionRig(const RigOptions& options)
    : options_(options),
      pages_per_slot_((options.positions + cuda::kPageTokens - 1) / cuda::kPageTokens),
      limits_{.rows = options.rows,
              .sequences = options.sequences,
              .splits_max = (pages_per_slot_ * cuda::kPageTokens + options.split_kv_size - 1) /
                            options.split_kv_size,
              .q_heads = options.q_heads,
              .kv_heads = options.kv_heads,
              .head_dim = options.head_dim} {
  const size_t pages = Size(pages_per_slot_) * Size(options.sequences);
  pool_ = DeviceBytes(pages * Size(options.kv_heads) * cuda::KvTileElements(options.head_dim) * 4);
  const int width = (options.q_heads + 2 * options.kv_heads) * options.head_dim;
  qkv_ = DeviceBytes(Size(options.rows) * Size(width) * 2);
  y_ = DeviceBytes(Size(options.rows) * row_width() * 2);
  token_positions_ = DeviceBytes(Size(options.rows) * 4);
  row_sequence_ = DeviceBytes(Size(options.rows) * 4);
  query_start_ = DeviceBytes((Size(options.sequences) + 1) * 4);
  block_table_ = DeviceBytes(pages * 4);
  workspace_ = DeviceBytes(cuda::AttentionWorkspaceBytes(limits_));
}

AttentionRig::SequenceKey AttentionRig::KeyOf(const Chunk& chunk) {
  return {chunk.stream, std::bit_cast<uint32_t>(chunk.fill), chunk.nan_from};
}

const AttentionRig::Sequence& AttentionRig::SequenceOf(const Chunk& chunk) const {
  const SequenceKey key = KeyOf(chunk);
  const auto found = sequences_.find(key);
  if (found != sequences_.end()) return found->second;
  const size_t kv = Size(options_.positions) * Size(options_.kv_heads * options_.head_dim);
  const uint32_t stream = chunk.stream * 3;
  Sequence sequence{
      .queries = Values(stream, Size(options_.positions) * row_width(), kQueryScale, chunk.fill),
      .keys = Values(stream + 1, kv, 1, chunk.fill),
      .values = Values(stream + 2, kv, 1, chunk.fill)};
  if (options_.cancel_period > 0) Cancel(sequence);
  if (chunk.nan_from > 0) {
    for (auto* values : {&sequence.queries, &sequence.keys, &sequence.values}) {
      const size_t width = values->size() / Size(options_.positions);
      std::fill(values->begin() + static_cast<ptrdiff_t>(width * Size(chunk.nan_from)),
                values->end(), kNan);
    }
  }
  return sequences_.emplace(key, std::move(sequence)).first->second;
}

void AttentionRig::Cancel(Sequence& sequence) const {
  const size_t width = Size(options_.kv_heads * options_.head_dim);
  const size_t period = Size(options_.cancel_period) * width;
  for (size_t i = period; i < sequence.keys.size(); ++i) {
    sequence.keys[i] = sequence.keys[i - period];
    sequence.values[i] = sequence.values[i - period] ^ 0x8000;
  }
}

// A permutation of all pages: an odd multiplier modulo their count would need a coprime, so a
// reversal and a rotation do.
int AttentionRig::Page(int slot, int index) const {
  const int count = pages_per_slot_ * options_.sequences;
  const int logical = slot * pages_per_slot_ + index;
  if (options_.shuffle == 0) return logical;
  return (count - 1 - logical + static_cast<int>(options_.shuffle)) % count;
}

void AttentionRig::FillPage(const Chunk& chunk, int index, uint16_t* page) const {
  const Sequence& sequence = SequenceOf(chunk);
  const int dim = options_.head_dim;
  const size_t tile = cuda::KvTileElements(dim);
  std::fill_n(page, PageElements(), kNan);
  const int first = index * cuda::kPageTokens;
  for (int position = first; position < std::min(first + cuda::kPageTokens, chunk.end);
       ++position) {
    for (int head = 0; head < options_.kv_heads; ++head) {
      const size_t from = (Size(position) * Size(options_.kv_heads) + Size(head)) * Size(dim);
      uint16_t* keys = page + Size(head) * 2 * tile;
      for (int d = 0; d < dim; ++d) {
        const size_t to = Size(cuda::KvElementOffset(position - first, d));
        keys[to] = sequence.keys[from + Size(d)];
        keys[tile + to] = sequence.values[from + Size(d)];
      }
    }
  }
}

void AttentionRig::LoadKv(const std::vector<Chunk>& chunks) {
  // Pages that lie side by side travel together.
  constexpr size_t kStagedMax = size_t{16} << 20;
  std::vector<uint16_t> staged;
  size_t first = 0;
  const auto flush = [&] {
    CopyToDevice(staged, pool_.as<uint16_t>() + first * PageElements());
    staged.clear();
  };
  for (const Chunk& chunk : chunks) {
    const std::pair<SequenceKey, int> wanted(KeyOf(chunk), chunk.end);
    const auto [at, fresh] = loaded_.emplace(chunk.slot, wanted);
    if (!fresh && at->second == wanted) continue;
    at->second = wanted;
    for (int index = 0; index < pages_per_slot_; ++index) {
      const size_t page = Size(Page(chunk.slot, index));
      if (page != first + staged.size() / PageElements() || staged.size() > kStagedMax) {
        flush();
        first = page;
      }
      staged.resize(staged.size() + PageElements());
      FillPage(chunk, index, staged.data() + staged.size() - PageElements());
    }
  }
  flush();
}

void AttentionRig::Load(const std::vector<Chunk>& chunks, int padding_rows) {
  const size_t width = Size((options_.q_heads + 2 * options_.kv_heads) * options_.head_dim);
  std::vector<uint16_t> qkv;
  std::vector<int32_t> positions;
  std::vector<int32_t> row_sequence;
  std::vector<int32_t> query_start;
  std::vector<int32_t> block_table;
  LoadKv(chunks);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = chunks[i];
    const Sequence& sequence = SequenceOf(chunk);
    query_start.push_back(static_cast<int32_t>(positions.size()));
    for (int page = 0; page < pages_per_slot_; ++page) {
      block_table.push_back(Page(chunk.slot, page));
    }
    for (int position = chunk.begin; position < chunk.end; ++position) {
      const auto row =
          sequence.queries.begin() + static_cast<ptrdiff_t>(Size(position) * row_width());
      qkv.insert(qkv.end(), row, row + static_cast<ptrdiff_t>(row_width()));
      qkv.resize(qkv.size() + width - row_width(), kNan);
      positions.push_back(position);
      row_sequence.push_back(static_cast<int32_t>(i));
    }
  }
  query_start.push_back(static_cast<int32_t>(positions.size()));
  positions.resize(positions.size() + Size(padding_rows), 0);
  row_sequence.resize(positions.size(), -1);
  qkv.resize(positions.size() * width, kNan);
  shape_ = {.rows = static_cast<int>(positions.size()),
            .sequences = static_cast<int>(chunks.size()),
            .blocks_max = pages_per_slot_};
  LOCKSTEP_CHECK(shape_.rows <= options_.rows && shape_.sequences <= options_.sequences)
      << shape_.rows << " rows";
  CopyToDevice(qkv, qkv_.as<uint16_t>());
  CopyToDevice(positions, token_positions_.as<int32_t>());
  CopyToDevice(row_sequence, row_sequence_.as<int32_t>());
  CopyToDevice(query_start, query_start_.as<int32_t>());
  CopyToDevice(block_table, block_table_.as<int32_t>());
  Must(cudaMemset(y_.as<void>(), 0xFF, y_.bytes()));
  Must(cudaMemset(workspace_.as<void>(), 0xFF, workspace_.bytes()));
}

void AttentionRig::Enqueue(const RigRun& run, cudaStream_t stream) {
  cuda::AttentionCall call{
      .args = {.shape = shape_,
               .inputs = {.positions = token_positions_.as<int32_t>(),
                          .row_sequence = row_sequence_.as<int32_t>(),
                          .query_start = query_start_.as<int32_t>(),
                          .block_table = block_table_.as<int32_t>()},
               .q_heads = options_.q_heads,
               .kv_heads = options_.kv_heads,
               .head_dim = options_.head_dim,
               .split_kv_size = options_.split_kv_size,
               .qkv = qkv_.as<void>(),
               .y = y_.as<void>()},
      .pool = {.data = pool_.as<uint16_t>(),
               .layers = 1,
               .kv_heads = options_.kv_heads,
               .head_dim = options_.head_dim},
      .limits = limits_,
      .workspace = cuda::LayOutAttentionWorkspace(limits_, workspace_.as<void>()),
      .schedule = run.schedule,
      .kv_block = options_.kv_block};
  call.schedule.path = options_.path;
  if (run.reference) {
    Must(cuda::AttentionReference(call, stream));
    return;
  }
  Must(cuda::PlanAttention(call, stream));
  Must(cuda::Attention(call, stream));
}

std::vector<float> AttentionRig::Read() {
  return FloatsOfBf16(CopyFromDevice(y_.as<uint16_t>(), Size(shape_.rows) * row_width()));
}

std::vector<float> AttentionRig::Step(const std::vector<Chunk>& chunks, const RigRun& run,
                                      int padding_rows) {
  Load(chunks, padding_rows);
  Enqueue(run, nullptr);
  Must(cudaDeviceSynchronize());
  return Read();
}

std::vector<float> AttentionRig::Query(const Chunk& chunk, int position, int head) const {
  const size_t begin = Size(position) * row_width() + Size(head * options_.head_dim);
  return Widened(SequenceOf(chunk).queries, begin, Size(options_.head_dim));
}

std::vector<float> AttentionRig::Key(const Chunk& chunk, int position, int head) const {
  const size_t begin = Size((position * options_.kv_heads + head) * options_.head_dim);
  return Widened(SequenceOf(chunk).keys, begin, Size(options_.head_dim));
}

std::vector<float> AttentionRig::Value(const Chunk& chunk, int position, int head) const {
  const size_t begin = Size((position * options_.kv_heads + head) * options_.head_dim);
  return Widened(SequenceOf(chunk).values, begin, Size(options_.head_dim));
}

}  // namespace lockstep::testing
