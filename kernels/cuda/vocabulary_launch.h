#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_ops.h"

// Shapes of the kernels that hold a row of logits, in the shared memory of a cluster or in global
// memory of one CTA.
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

// Sums of a tile that Logprobs keeps beside a row.
inline constexpr int kTileSums = 3;

// Floats that one CTA needs for a whole row, in whole lines of memory.
constexpr size_t CtaRowElements(int vocabulary) {
  constexpr size_t kLine = 32;
  return (static_cast<size_t>(TilesOf(vocabulary)) * (kTileIds + kTileSums) + kLine - 1) / kLine *
         kLine;
}

// Shared memory of a CTA that has its part of a row, and its sums, in a cluster.
constexpr size_t ClusterRowBytes(int tiles_of_cta) {
  return static_cast<size_t>(tiles_of_cta) * (kTileIds + kTileSums) * sizeof(float);
}

// The ops of each path, for arguments that are checked.
cudaError_t LogprobsOnSm90(const LogprobArgs& args, const VocabularySchedule& schedule,
                           cudaStream_t stream);
cudaError_t LogprobsPortable(const LogprobArgs& args, const VocabularySchedule& schedule,
                             cudaStream_t stream);
cudaError_t SampleOnSm90(const SampleArgs& args, const VocabularySchedule& schedule,
                         cudaStream_t stream);
cudaError_t SamplePortable(const SampleArgs& args, const VocabularySchedule& schedule,
                           cudaStream_t stream);

// Launches CTAs that take one row after the other, each in its part of the schedule's scratch.
template <typename Args>
cudaError_t LaunchCtaRows(void (*kernel)(Args, float*), const Args& args,
                          const VocabularySchedule& schedule, cudaStream_t stream) {
  const size_t rows_at_once =
      schedule.scratch_bytes / (CtaRowElements(args.vocabulary) * sizeof(float));
  if (schedule.scratch == nullptr || rows_at_once == 0 ||
      args.vocabulary > kPortableVocabularyMax) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const size_t ctas = std::min(rows_at_once, static_cast<size_t>(args.rows));
  return LaunchInOrder(kernel, dim3(static_cast<unsigned>(ctas)), dim3(kVocabularyThreads), 0,
                       stream, args, static_cast<float*>(schedule.scratch));
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
