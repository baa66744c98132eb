#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/api/kernel_set.h"
#include "kernels/cuda/row_ops.h"
#include "tests/gpu/device_array.h"

namespace lockstep::testing {

// Memory for portable kernels, of fewer rows than a large batch has.
class VocabularyScratch {
 public:
  VocabularyScratch(int vocabulary, size_t rows);
  // `schedule` with this memory.
  kernels::cuda::VocabularySchedule Of(const kernels::cuda::VocabularySchedule& schedule) const;

 private:
  DeviceArray<uint8_t> memory_;
};

// One row for Logprobs, with its own list.
struct LogprobCase {
  std::vector<float> logits;
  kernels::LogprobRow params;
  std::vector<int32_t> chosen;
};

struct LogprobResult {
  float raw = 0;
  float scaled = 0;
  float entropy = 0;
  std::vector<int32_t> top_ids;  // [kTopLogprobsMax]
  std::vector<float> top_logprobs;
  std::vector<float> chosen;
  kernels::SampleError error = kernels::SampleError::kNone;
};

// All results bit for bit.
::testing::AssertionResult Same(const LogprobResult& actual, const LogprobResult& expected);

// Logprobs over a batch of rows in device memory; results are poisoned before.
class LogprobBatch {
 public:
  explicit LogprobBatch(const std::vector<LogprobCase>& rows);
  // Other rows of the same shape.
  void Load(const std::vector<LogprobCase>& rows);
  void Enqueue(const kernels::cuda::VocabularySchedule& schedule, cudaStream_t stream);
  std::vector<LogprobResult> Read();

 private:
  std::vector<kernels::LogprobRow> params_;
  int vocabulary_;
  DeviceArray<float> logits_;
  DeviceArray<kernels::LogprobRow> device_params_;
  DeviceArray<int32_t> chosen_ids_;
  DeviceArray<float> raw_;
  DeviceArray<float> scaled_;
  DeviceArray<float> entropy_;
  DeviceArray<int32_t> top_ids_;
  DeviceArray<float> top_logprobs_;
  DeviceArray<float> chosen_;
  DeviceArray<kernels::SampleError> errors_;
  VocabularyScratch scratch_;
};

std::vector<LogprobResult> LogprobsOnGpu(const std::vector<LogprobCase>& rows,
                                         const kernels::cuda::VocabularySchedule& schedule = {});
// The CPU backend, whose bits are the contract's.
std::vector<LogprobResult> LogprobsOnCpu(const std::vector<LogprobCase>& rows);

// One row for Sample, with its own lists.
struct SampleCase {
  std::vector<float> logits;
  kernels::SamplingRow params;
  std::vector<kernels::IdBias> biases;
  std::vector<kernels::IdCount> counts;
};

struct SampleResult {
  int32_t id = 0;
  kernels::SampleError error = kernels::SampleError::kNone;

  bool operator==(const SampleResult&) const = default;
};

// Ids from vocabulary_sampled on are never drawn; 0 is the whole vocabulary.
class SampleBatch {
 public:
  explicit SampleBatch(const std::vector<SampleCase>& rows, int vocabulary_sampled = 0);
  void Load(const std::vector<SampleCase>& rows);
  void Enqueue(const kernels::cuda::VocabularySchedule& schedule, cudaStream_t stream);
  std::vector<SampleResult> Read();

 private:
  int vocabulary_;
  int vocabulary_sampled_;
  DeviceArray<float> logits_;
  DeviceArray<kernels::SamplingRow> params_;
  DeviceArray<kernels::IdBias> biases_;
  DeviceArray<kernels::IdCount> counts_;
  DeviceArray<int32_t> ids_;
  DeviceArray<kernels::SampleError> errors_;
  VocabularyScratch scratch_;
};

std::vector<SampleResult> SampleOnGpu(const std::vector<SampleCase>& rows,
                                      int vocabulary_sampled = 0,
                                      const kernels::cuda::VocabularySchedule& schedule = {});
std::vector<SampleResult> SampleOnCpu(const std::vector<SampleCase>& rows,
                                      int vocabulary_sampled = 0);

}  // namespace lockstep::testing
