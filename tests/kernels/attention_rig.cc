#include "tests/kernels/attention_rig.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/philox_data.h"

namespace lockstep::kernels {

AttentionRig::AttentionRig(KernelSet& kernels, const RigOptions& options)
    : kernels_(kernels), options_(options) {
  const int tokens = kernels.traits().kv_block_tokens;
  blocks_max_ = (options.positions + tokens - 1) / tokens;
  // Twice as many blocks as needed, handed out in an order that `shuffle` decides.
  const int blocks = 2 * blocks_max_ * options.sequences;
  std::vector<int32_t> order(static_cast<size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[testing::PhiloxWord(options.shuffle, i) % i]);
  }
  block_table_.assign(order.begin(), order.begin() + blocks_max_ * options.sequences);
  kv_ = kernels
            .CreateKvCache({.layers = 2,
                            .kv_heads = options.kv_heads,
                            .head_dim = options.head_dim,
                            .blocks = blocks,
                            .block_tokens = tokens})
            .value();
  rope_ =
      kernels.MakeRopeTable({.head_dim = options.head_dim, .positions = options.positions}).value();
}

template <typename T>
T* AttentionRig::Put(const std::vector<T>& host) {
  step_buffers_.push_back(kernels_.Allocate(host.size() * sizeof(T), "rig").value());
  kernels_.Upload(host.data(), host.size() * sizeof(T), step_buffers_.back().as<void>());
  return step_buffers_.back().as<T>();
}

std::vector<float> AttentionRig::Row(const Chunk& chunk, int position) const {
  const size_t width =
      static_cast<size_t>((options_.q_heads + 2 * options_.kv_heads) * options_.head_dim);
  if (chunk.fill != 0) return std::vector<float>(width, chunk.fill);
  std::vector<float> row(width);
  for (size_t i = 0; i < width; ++i) {
    row[i] = testing::PhiloxUniform(chunk.stream, static_cast<size_t>(position) * width + i);
  }
  return row;
}

void AttentionRig::Free(int slot) {
  for (int i = 0; i < blocks_max_; ++i) {
    kv_->Poison(block_table_[static_cast<size_t>(slot * blocks_max_ + i)]);
  }
}

std::vector<float> AttentionRig::Step(const std::vector<Chunk>& chunks, int padding_rows) {
  step_buffers_.clear();
  std::vector<float> qkv;
  std::vector<int32_t> positions, row_sequence, query_start = {0}, table;
  for (size_t s = 0; s < chunks.size(); ++s) {
    for (int position = chunks[s].begin; position < chunks[s].end; ++position) {
      const std::vector<float> row = Row(chunks[s], position);
      qkv.insert(qkv.end(), row.begin(), row.end());
      positions.push_back(position);
      row_sequence.push_back(static_cast<int32_t>(s));
    }
    query_start.push_back(static_cast<int32_t>(positions.size()));
    const auto begin = block_table_.begin() + chunks[s].slot * blocks_max_;
    table.insert(table.end(), begin, begin + blocks_max_);
  }
  const size_t rows = positions.size();
  positions.resize(rows + static_cast<size_t>(padding_rows), 0);
  row_sequence.resize(positions.size(), -1);
  qkv.resize(qkv.size() / rows * positions.size(), NAN);
  // Queries with wide scores, so that the softmax is far from flat.
  const std::vector<float> q_norm =
      testing::UniformData(77, static_cast<size_t>(options_.head_dim), 6);
  const std::vector<float> k_norm =
      testing::UniformData(78, static_cast<size_t>(options_.head_dim), 6);
  const StepShape shape{.rows = static_cast<int>(positions.size()),
                        .sequences = static_cast<int>(chunks.size()),
                        .blocks_max = blocks_max_};
  const StepInputs inputs{.positions = Put(positions),
                          .row_sequence = Put(row_sequence),
                          .query_start = Put(query_start),
                          .block_table = Put(table)};
  float* device_qkv = Put(qkv);
  float* y = Put(std::vector<float>(positions.size() * row_width(), NAN));
  kernels_.QkvPrepare({.shape = shape,
                       .inputs = inputs,
                       .q_heads = options_.q_heads,
                       .kv_heads = options_.kv_heads,
                       .head_dim = options_.head_dim,
                       .q_norm = options_.norms ? Put(q_norm) : nullptr,
                       .k_norm = options_.norms ? Put(k_norm) : nullptr,
                       .epsilon = 1e-6f,
                       .rope_table = rope_.as<float>(),
                       .qkv = device_qkv,
                       .kv = kv_.get(),
                       .layer = 1});
  kernels_.Attention({.shape = shape,
                      .inputs = inputs,
                      .q_heads = options_.q_heads,
                      .kv_heads = options_.kv_heads,
                      .head_dim = options_.head_dim,
                      .split_kv_size = options_.split_kv_size,
                      .qkv = device_qkv,
                      .kv = kv_.get(),
                      .layer = 1,
                      .y = y});
  std::vector<float> result(positions.size() * row_width());
  prepared_.resize(qkv.size());
  kernels_.Download(y, result.size() * sizeof(float), result.data());
  kernels_.Download(device_qkv, prepared_.size() * sizeof(float), prepared_.data());
  return result;
}

}  // namespace lockstep::kernels
