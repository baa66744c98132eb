#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

// Shapes of the kernels that hold a row of logits in the shared memory of a cluster.
namespace lockstep::kernels::cuda {

inline constexpr int kVocabularyThreads = 512;
inline constexpr int kVocabularyWarps = kVocabularyThreads / 32;
// Ids that one warp sums: a subtree of T.
inline constexpr int kTileIds = 128;
inline constexpr int kTilesMax = 4096;
inline constexpr int kClusterMax = 16;
// Dynamic shared memory that a CTA can have, less what the kernels declare themselves.
inline constexpr size_t kVocabularySharedMax = size_t{200} << 10;

constexpr int TilesOf(int vocabulary) { return (vocabulary + kTileIds - 1) / kTileIds; }

constexpr int TilesPerCta(int vocabulary, int cluster) {
  return (TilesOf(vocabulary) + cluster - 1) / cluster;
}

constexpr int IdsPerCta(int vocabulary, int cluster) {
  return TilesPerCta(vocabulary, cluster) * kTileIds;
}

// Launches as many clusters as run at once, or fewer, so that all take as many rows.
template <typename Parameters>
cudaError_t LaunchRows(void (*kernel)(Parameters), int rows, int cluster, size_t shared_bytes,
                       cudaStream_t stream, Parameters parameters) {
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (cluster < 1 || cluster > kClusterMax || shared_bytes > kVocabularySharedMax) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0) return cudaSuccess;
  // As many CTAs beside each other as shared memory holds.
  const std::pair<cudaFuncAttribute, int> wanted[] = {
      {cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)},
      {cudaFuncAttributeNonPortableClusterSizeAllowed, 1},
      {cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared}};
  for (const auto& [attribute, value] : wanted) {
    if (const cudaError_t error = cudaFuncSetAttribute(entry, attribute, value);
        error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows * cluster));
  config.blockDim = dim3(kVocabularyThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  int at_once = 0;
  if (const cudaError_t error = cudaOccupancyMaxActiveClusters(&at_once, entry, &config);
      error != cudaSuccess) {
    return error;
  }
  if (at_once == 0) return cudaErrorInvalidValue;
  const int rows_each = (rows + at_once - 1) / at_once;
  const int clusters = (rows + rows_each - 1) / rows_each;
  config.gridDim = dim3(static_cast<unsigned>(clusters * cluster));
  void* arguments[] = {&parameters};
  return cudaLaunchKernelExC(&config, entry, arguments);
}

}  // namespace lockstep::kernels::cuda
