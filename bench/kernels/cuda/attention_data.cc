#include "bench/kernels/cuda/attention_data.h"

#include <algorithm>

#include "tests/gpu/gpu_test.h"
#include "tests/support/philox_data.h"

namespace lockstep::bench {
namespace {

namespace cuda = kernels::cuda;
using testing::DeviceBytes;
using testing::Must;

constexpr size_t kRandomElements = size_t{16} << 20;

// Fills device memory with copies of one run of random values: each page is random in itself.
void FillRandom(const kernels::Buffer& buffer, uint32_t stream, float scale) {
  const std::vector<uint16_t> run = testing::Bf16Data(
      testing::UniformData(stream, std::min(kRandomElements, buffer.bytes() / 2), scale));
  testing::CopyToDevice(run, buffer.as<uint16_t>());
  for (size_t done = run.size() * 2; done < buffer.bytes();) {
    const size_t bytes = std::min(done, buffer.bytes() - done);
    Must(cudaMemcpy(buffer.as<uint8_t>() + done, buffer.as<uint8_t>(), bytes,
                    cudaMemcpyDeviceToDevice));
    done += bytes;
  }
}

size_t Size(int count) { return static_cast<size_t>(count); }

}  // namespace

AttentionData::AttentionData(int tokens_max, int rows_max, int sequences_max)
    : pages_(tokens_max / cuda::kPageTokens), rows_max_(rows_max), sequences_max_(sequences_max) {
  const size_t tile = cuda::KvTileElements(kHeadDim) * sizeof(uint16_t);
  pool_ = DeviceBytes(Size(pages_) * kKvHeads * 2 * tile);
  qkv_ = DeviceBytes(Size(rows_max) * (kQueryHeads + 2 * kKvHeads) * kHeadDim * 2);
  y_ = DeviceBytes(Size(rows_max) * kQueryHeads * kHeadDim * 2);
  positions_ = DeviceBytes(Size(rows_max) * 4);
  row_sequence_ = DeviceBytes(Size(rows_max) * 4);
  query_start_ = DeviceBytes((Size(sequences_max) + 1) * 4);
  // Enough for the longest contexts at the smallest split.
  workspace_ = DeviceBytes(size_t{2} << 30);
  FillRandom(pool_, 1, 1);
  FillRandom(qkv_, 2, 8);
  std::vector<int32_t> order(Size(pages_));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  for (size_t i = order.size() - 1; i > 0; --i) {
    std::swap(order[i], order[testing::PhiloxWord(3, i) % (i + 1)]);
  }
  order.insert(order.end(), order.begin(), order.begin() + pages_);
  page_order_ = DeviceBytes(order.size() * 4);
  testing::CopyToDevice(order, page_order_.as<int32_t>());
}

void AttentionData::Load(int sequences, int context, int rows) {
  sequences_ = sequences;
  context_ = context;
  rows_ = sequences * rows;
  std::vector<int32_t> positions;
  std::vector<int32_t> row_sequence;
  std::vector<int32_t> query_start;
  for (int sequence = 0; sequence < sequences; ++sequence) {
    query_start.push_back(static_cast<int32_t>(positions.size()));
    for (int row = 0; row < rows; ++row) {
      positions.push_back(context - rows + row);
      row_sequence.push_back(sequence);
    }
  }
  query_start.push_back(static_cast<int32_t>(positions.size()));
  LOCKSTEP_CHECK(rows_ <= rows_max_ && sequences <= sequences_max_ &&
                 sequences * (context / cuda::kPageTokens) <= pages_)
      << sequences << " sequences of " << context;
  testing::CopyToDevice(positions, positions_.as<int32_t>());
  testing::CopyToDevice(row_sequence, row_sequence_.as<int32_t>());
  testing::CopyToDevice(query_start, query_start_.as<int32_t>());
}

cuda::AttentionCall AttentionData::Call(const Variant& variant, int turn) const {
  const int pages = context_ / cuda::kPageTokens;
  const cuda::AttentionLimits limits{
      .rows = rows_,
      .sequences = sequences_,
      .splits_max = (context_ + variant.split_kv_size - 1) / variant.split_kv_size,
      .q_heads = kQueryHeads,
      .kv_heads = kKvHeads,
      .head_dim = kHeadDim};
  LOCKSTEP_CHECK_LE(cuda::AttentionWorkspaceBytes(limits), workspace_.bytes());
  const size_t offset = Size(turn) * Size(sequences_) * Size(pages) % Size(pages_);
  return {.args = {.shape = {.rows = rows_, .sequences = sequences_, .blocks_max = pages},
                   .inputs = {.positions = positions_.as<int32_t>(),
                              .row_sequence = row_sequence_.as<int32_t>(),
                              .query_start = query_start_.as<int32_t>(),
                              .block_table = page_order_.as<int32_t>() + offset},
                   .q_heads = kQueryHeads,
                   .kv_heads = kKvHeads,
                   .head_dim = kHeadDim,
                   .split_kv_size = variant.split_kv_size,
                   .qkv = qkv_.as<void>(),
                   .y = y_.as<void>()},
          .pool = {.data = pool_.as<uint16_t>(),
                   .layers = 1,
                   .kv_heads = kKvHeads,
                   .head_dim = kHeadDim},
          .limits = limits,
          .workspace = cuda::LayOutAttentionWorkspace(limits, workspace_.as<void>()),
          .schedule = variant.schedule,
          .kv_block = variant.kv_block};
}

void AttentionData::Plan(const Variant& variant, cudaStream_t stream) {
  Must(cuda::PlanAttention(Call(variant, 0), stream));
}

void AttentionData::Enqueue(const Variant& variant, int turn, cudaStream_t stream) {
  Must(cuda::Attention(Call(variant, turn), stream));
}

void AttentionData::Poison() { Must(cudaMemset(y_.as<void>(), 0xFF, y_.bytes())); }

std::vector<uint16_t> AttentionData::Outputs() const {
  return testing::CopyFromDevice(y_.as<uint16_t>(), Size(rows_) * kQueryHeads * kHeadDim);
}

}  // namespace lockstep::bench
