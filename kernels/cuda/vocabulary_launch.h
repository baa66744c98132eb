#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

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

// Launches one cluster for each row.
template <typename Parameters>
cudaError_t LaunchRows(void (*kernel)(Parameters), int rows, int cluster, size_t shared_bytes,
                       cudaStream_t stream, Parameters parameters) {
  const void* entry = reinterpret_cast<const void*>(kernel);
  if (cluster < 1 || cluster > kClusterMax || shared_bytes > kVocabularySharedMax) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0) return cudaSuccess;
  if (const cudaError_t error = cudaFuncSetAttribute(
          entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error =
          cudaFuncSetAttribute(entry, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
      error != cudaSuccess) {
    return error;
  }
  // As many CTAs beside each other as shared memory holds.
  if (const cudaError_t error = cudaFuncSetAttribute(
          entry, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
      error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows * cluster));
  config.blockDim = dim3(kVocabularyThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {&parameters};
  return cudaLaunchKernelExC(&config, entry, arguments);
}

}  // namespace lockstep::kernels::cuda
