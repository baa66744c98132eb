#include "kernels/cuda/linear/linear_sm90.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "kernels/cuda/device/linear_sm90.cuh"

namespace lockstep::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looked up, so that a binary starts where there is no driver.
Encode FindEncode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                             12000, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess
             ? reinterpret_cast<Encode>(entry)
             : nullptr;
}

struct Matrix {
  const void* data;
  int rows;
  int columns;
  int stride;
  int box_rows;
};

// Boxes of 64 columns, swizzled as the tensor core reads them.
cudaError_t MakeMap(const Matrix& matrix, CUtensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.columns),
                              static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.stride) * 2};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(matrix.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix.data), sizes,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename Tiling>
cudaError_t Launch(const LinearSm90Call& call, cudaStream_t stream) {
  const LinearShape& shape = call.shape;
  CUtensorMap weight_map;
  CUtensorMap x_map;
  if (const cudaError_t error = MakeMap(
          {call.weight, shape.outputs, shape.inputs, shape.inputs, Tiling::kOutputs}, &weight_map);
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = MakeMap(
          {call.x, call.rows, shape.inputs, shape.x_stride, Tiling::kRows / Tiling::kMulticast},
          &x_map);
      error != cudaSuccess) {
    return error;
  }
  const LinearSm90Parameters parameters{
      .bias = static_cast<const uint16_t*>(call.bias),
      .y = static_cast<uint16_t*>(call.y),
      .y_f32 = shape.output == DType::kF32 ? static_cast<float*>(call.y) : nullptr,
      .y_stride = static_cast<size_t>(shape.y_stride),
      .rows = call.rows,
      .inputs = shape.inputs,
      .output_tiles = shape.outputs / Tiling::kOutputs,
      .row_tiles = (call.rows + Tiling::kRows - 1) / Tiling::kRows,
      .accumulate = call.accumulate};
  const auto kernel = LinearSm90Kernel<Tiling>;
  if (const cudaError_t error = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Tiling::kSharedBytes);
      error != cudaSuccess) {
    return error;
  }
  int device = 0;
  int multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  int clusters = parameters.output_tiles / Tiling::kMulticast * parameters.row_tiles;
  // CTAs come back for more tiles, except where a cluster meets after each.
  if (!Tiling::kSplit) clusters = std::min(clusters, multiprocessors / Tiling::kCluster);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = Tiling::kCluster;
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  // It may start, and load weights, while the kernel before it ends.
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters * Tiling::kCluster));
  config.blockDim = dim3(Tiling::kThreads);
  config.dynamicSmemBytes = Tiling::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return cudaLaunchKernelEx(&config, kernel, weight_map, x_map, parameters);
}

struct Entry {
  Sm90Tiling tiling;
  cudaError_t (*launch)(const LinearSm90Call& call, cudaStream_t stream);
};

template <int kRows, int kWarpgroups, int kSegments, bool kSplit, int kSharers>
constexpr Entry EntryOf() {
  using Tiling = LinearTiling<kRows, kWarpgroups, kSegments, kSplit, kSharers>;
  return {{kRows, Tiling::kOutputs, kSegments, kSplit, kSharers}, Launch<Tiling>};
}

// Certificates name tilings by their index here.
constexpr Entry kEntries[] = {
    // Decode: weights stream through, and two CTAs share a row of them.
    EntryOf<8, 1, 2, true, 1>(), EntryOf<16, 1, 2, true, 1>(), EntryOf<32, 1, 2, true, 1>(),
    EntryOf<64, 1, 2, true, 1>(), EntryOf<64, 1, 2, true, 2>(), EntryOf<96, 1, 2, true, 2>(),
    EntryOf<128, 1, 2, true, 2>(), EntryOf<128, 2, 2, true, 2>(),
    // Prefill: both segments in registers.
    EntryOf<64, 2, 2, false, 1>(), EntryOf<64, 2, 2, false, 2>(), EntryOf<96, 2, 2, false, 1>(),
    EntryOf<96, 2, 2, false, 2>(), EntryOf<128, 2, 2, false, 1>(), EntryOf<128, 2, 2, false, 2>(),
    EntryOf<192, 2, 2, false, 1>(), EntryOf<192, 2, 2, false, 2>(),
    // One segment.
    EntryOf<16, 1, 1, false, 1>(), EntryOf<64, 1, 1, false, 1>(), EntryOf<96, 2, 1, false, 2>(),
    EntryOf<128, 2, 1, false, 2>(), EntryOf<192, 2, 1, false, 2>()};

constexpr auto kTilings = [] {
  std::array<Sm90Tiling, std::size(kEntries)> tilings = {};
  for (size_t i = 0; i < tilings.size(); ++i) tilings[i] = kEntries[i].tiling;
  return tilings;
}();

}  // namespace

std::span<const Sm90Tiling> Sm90Tilings() { return kTilings; }

bool Fits(const Sm90Tiling& tiling, const LinearShape& shape, int rows) {
  if (!IsSupported(shape)) return false;
  if (tiling.segments != shape.segments) return false;
  if (shape.outputs % (tiling.outputs * tiling.sharers) != 0) return false;
  const int row_tiles = (rows + tiling.rows - 1) / tiling.rows;
  // Empty places of a tile cost what full ones do.
  if (row_tiles * tiling.rows > std::max(2 * rows, 16)) return false;
  // Narrow tiles are for few rows, wide ones for many.
  if (tiling.outputs == 64 || tiling.split) return row_tiles <= 2;
  return rows >= 192;
}

cudaError_t LinearOnSm90(const LinearSm90Call& call, cudaStream_t stream) {
  if (call.tiling < 0 || call.tiling >= static_cast<int>(std::size(kEntries)) || call.rows < 0) {
    return cudaErrorInvalidValue;
  }
  const Entry& entry = kEntries[call.tiling];
  const LinearShape& shape = call.shape;
  if (!IsSupported(shape) || (call.accumulate && shape.output != DType::kBf16) ||
      shape.segments != entry.tiling.segments ||
      shape.outputs % (entry.tiling.outputs * entry.tiling.sharers) != 0) {
    return cudaErrorInvalidValue;
  }
  return call.rows == 0 ? cudaSuccess : entry.launch(call, stream);
}

}  // namespace lockstep::kernels::cuda
