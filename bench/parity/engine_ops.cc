#include "bench/parity/engine_ops.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/order/rope_table.h"
#include "tests/gpu/device_array.h"

namespace cuda = lockstep::kernels::cuda;
using lockstep::kernels::DType;
using lockstep::kernels::LogprobRow;
using lockstep::kernels::SampleError;
using lockstep::testing::DeviceArray;
using lockstep::testing::DeviceBytes;

namespace {

constexpr cudaStream_t kStream = nullptr;  // PyTorch's.

int Finish(cudaError_t launched) {
  return static_cast<int>(launched == cudaSuccess ? cudaStreamSynchronize(kStream) : launched);
}

std::vector<int32_t> Ascending(int count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

}  // namespace

int ParityLinear(const ParityLinearCall* call) {
  const cuda::LinearShape shape = {.outputs = call->outputs,
                                   .inputs = call->inputs,
                                   .segments = call->segments,
                                   .output = call->output_f32 != 0 ? DType::kF32 : DType::kBf16,
                                   .bias = call->bias != nullptr,
                                   .x_stride = call->inputs,
                                   .y_stride = call->outputs};
  const size_t product_stride =
      static_cast<size_t>(call->rows) * static_cast<size_t>(call->outputs);
  const bool whole = call->segments == 1;
  const DeviceArray<float> partials(whole ? 0
                                          : product_stride * static_cast<size_t>(call->segments));
  const cudaError_t product = cuda::LinearReference({.shape = shape,
                                                     .rows = call->rows,
                                                     .weight = call->weight,
                                                     .bias = call->bias,
                                                     .x = call->x,
                                                     .product = whole ? call->y : partials.data()},
                                                    kStream);
  if (whole || product != cudaSuccess) return Finish(product);
  return Finish(cuda::LinearCombine({.shape = shape,
                                     .rows = call->rows,
                                     .partials = partials.data(),
                                     .partial_stride = product_stride,
                                     .bias = call->bias,
                                     .y = call->y},
                                    kStream));
}

int ParityRmsNorm(const ParityRmsNormCall* call) {
  return Finish(cuda::RmsNorm({.weight = call->weight,
                               .epsilon = call->epsilon,
                               .width = call->width,
                               .rows = call->rows,
                               .x = call->x,
                               .x_stride = static_cast<size_t>(call->width),
                               .y = call->y,
                               .y_stride = static_cast<size_t>(call->width)},
                              kStream));
}

int ParitySwiGlu(const ParitySwiGluCall* call) {
  return Finish(cuda::SwiGlu(
      {.width = call->width, .rows = call->rows, .gate_up = call->gate_up, .y = call->y}, kStream));
}

int ParityAttention(const ParityAttentionCall* call) {
  const int pages = (call->rows + cuda::kPageTokens - 1) / cuda::kPageTokens;
  const DeviceArray<int32_t> positions(Ascending(call->rows));
  const DeviceArray<int32_t> row_sequence(std::vector<int32_t>(static_cast<size_t>(call->rows)));
  const DeviceArray<int32_t> query_start(std::vector<int32_t>{0, call->rows});
  const DeviceArray<int32_t> block_table(Ascending(pages));
  const DeviceArray<uint16_t> pages_memory(static_cast<size_t>(pages) *
                                           static_cast<size_t>(call->kv_heads) * 2 *
                                           cuda::KvTileElements(call->head_dim));
  const cuda::KvPool pool = {.data = pages_memory.data(),
                             .layers = 1,
                             .kv_heads = call->kv_heads,
                             .head_dim = call->head_dim};
  const lockstep::kernels::StepShape shape = {
      .rows = call->rows, .sequences = 1, .blocks_max = pages};
  const lockstep::kernels::StepInputs inputs = {.positions = positions.data(),
                                                .row_sequence = row_sequence.data(),
                                                .query_start = query_start.data(),
                                                .block_table = block_table.data()};
  const cudaError_t prepared = cuda::QkvPrepare({.args = {.shape = shape,
                                                          .inputs = inputs,
                                                          .q_heads = call->q_heads,
                                                          .kv_heads = call->kv_heads,
                                                          .head_dim = call->head_dim,
                                                          .q_norm = call->q_norm,
                                                          .k_norm = call->k_norm,
                                                          .epsilon = call->epsilon,
                                                          .rope_table = call->rope_table,
                                                          .qkv = call->qkv},
                                                 .pool = pool},
                                                kStream);
  if (prepared != cudaSuccess) return Finish(prepared);
  const cuda::AttentionLimits limits = {
      .rows = call->rows,
      .sequences = 1,
      .splits_max = (pages * cuda::kPageTokens + call->split_kv_size - 1) / call->split_kv_size,
      .q_heads = call->q_heads,
      .kv_heads = call->kv_heads,
      .head_dim = call->head_dim};
  const auto workspace = DeviceBytes(cuda::AttentionWorkspaceBytes(limits));
  const cuda::AttentionCall attention = {
      .args = {.shape = shape,
               .inputs = inputs,
               .q_heads = call->q_heads,
               .kv_heads = call->kv_heads,
               .head_dim = call->head_dim,
               .split_kv_size = call->split_kv_size,
               .qkv = call->qkv,
               .y = call->y},
      .pool = pool,
      .limits = limits,
      .workspace = cuda::LayOutAttentionWorkspace(limits, workspace.as<void>())};
  const cudaError_t planned = cuda::PlanAttention(attention, kStream);
  return Finish(planned == cudaSuccess ? cuda::Attention(attention, kStream) : planned);
}

int ParityLogprobs(const ParityLogprobsCall* call) {
  std::vector<LogprobRow> rows;
  for (int row = 0; row < call->rows; ++row) {
    rows.push_back(
        {.target_id = call->ids[row], .temperature = call->temperature, .want_entropy = 1});
  }
  const DeviceArray<LogprobRow> row_params(rows);
  const DeviceArray<SampleError> errors(rows.size());
  const int finished = Finish(cuda::Logprobs({.rows = call->rows,
                                              .vocabulary = call->vocabulary,
                                              .logits = call->logits,
                                              .row_params = row_params.data(),
                                              .raw = call->raw,
                                              .scaled = call->scaled,
                                              .entropy = call->entropy,
                                              .errors = errors.data()},
                                             {}, kStream));
  if (finished != cudaSuccess) return finished;
  const std::vector<SampleError> found = errors.Read();
  const bool fine = std::all_of(found.begin(), found.end(),
                                [](SampleError error) { return error == SampleError::kNone; });
  return fine ? cudaSuccess : cudaErrorInvalidValue;
}

void ParityRopeTable(double theta, int32_t head_dim, int32_t positions, float* table) {
  const std::vector<float> values = lockstep::kernels::MakeRopeValues(
      {.theta = theta, .head_dim = head_dim, .positions = positions});
  std::copy(values.begin(), values.end(), table);
}
