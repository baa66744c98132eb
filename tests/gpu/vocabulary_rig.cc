#include "tests/gpu/vocabulary_rig.h"

#include <algorithm>

#include "kernels/cpu/cpu_kernel_set.h"
#include "tests/support/bitwise.h"

namespace lockstep::testing {
namespace {

namespace cuda = kernels::cuda;
using kernels::kTopLogprobsMax;

constexpr size_t kTop = kTopLogprobsMax;

template <typename Case>
std::vector<float> AllLogits(const std::vector<Case>& rows) {
  std::vector<float> logits;
  logits.reserve(rows.size() * rows[0].logits.size());
  for (const Case& row : rows) {
    LOCKSTEP_CHECK_EQ(row.logits.size(), rows[0].logits.size());
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
  }
  return logits;
}

// The lists of all rows behind each other, and each row's part of them.
struct LogprobLists {
  std::vector<kernels::LogprobRow> params;
  std::vector<int32_t> chosen;
};

LogprobLists ListsOf(const std::vector<LogprobCase>& rows) {
  LogprobLists lists;
  for (const LogprobCase& row : rows) {
    lists.params.push_back(row.params);
    lists.params.back().chosen_begin = static_cast<int32_t>(lists.chosen.size());
    lists.chosen.insert(lists.chosen.end(), row.chosen.begin(), row.chosen.end());
    lists.params.back().chosen_end = static_cast<int32_t>(lists.chosen.size());
  }
  return lists;
}

struct SampleLists {
  std::vector<kernels::SamplingRow> params;
  std::vector<kernels::IdBias> biases;
  std::vector<kernels::IdCount> counts;
};

SampleLists ListsOf(const std::vector<SampleCase>& rows) {
  SampleLists lists;
  for (const SampleCase& row : rows) {
    lists.params.push_back(row.params);
    kernels::SamplingRow& params = lists.params.back();
    params.bias_begin = static_cast<int32_t>(lists.biases.size());
    lists.biases.insert(lists.biases.end(), row.biases.begin(), row.biases.end());
    params.bias_end = static_cast<int32_t>(lists.biases.size());
    params.count_begin = static_cast<int32_t>(lists.counts.size());
    lists.counts.insert(lists.counts.end(), row.counts.begin(), row.counts.end());
    params.count_end = static_cast<int32_t>(lists.counts.size());
  }
  return lists;
}

// Results of all rows, in host memory.
struct LogprobArrays {
  std::vector<float> raw, scaled, entropy, top_logprobs, chosen;
  std::vector<int32_t> top_ids;
  std::vector<kernels::SampleError> errors;
};

std::vector<LogprobResult> ResultsOf(const LogprobArrays& all,
                                     const std::vector<kernels::LogprobRow>& params) {
  std::vector<LogprobResult> results;
  for (size_t row = 0; row < params.size(); ++row) {
    const auto top = static_cast<ptrdiff_t>(row * kTop);
    results.push_back(
        {.raw = all.raw[row],
         .scaled = all.scaled[row],
         .entropy = all.entropy[row],
         .top_ids = {all.top_ids.begin() + top, all.top_ids.begin() + top + kTopLogprobsMax},
         .top_logprobs = {all.top_logprobs.begin() + top,
                          all.top_logprobs.begin() + top + kTopLogprobsMax},
         .chosen = {all.chosen.begin() + params[row].chosen_begin,
                    all.chosen.begin() + params[row].chosen_end},
         .error = all.errors[row]});
  }
  return results;
}

kernels::KernelSet& Cpu() {
  static const auto kernels = kernels::cpu::CreateCpuKernelSet({.threads = 0}).value();
  return *kernels;
}

}  // namespace

::testing::AssertionResult Same(const LogprobResult& actual, const LogprobResult& expected) {
  if (actual.error != expected.error) {
    return ::testing::AssertionFailure() << "errors differ: " << static_cast<int>(actual.error)
                                         << " and " << static_cast<int>(expected.error);
  }
  const std::vector<float> a = {actual.raw, actual.scaled, actual.entropy};
  const std::vector<float> b = {expected.raw, expected.scaled, expected.entropy};
  if (auto same = BitwiseEqual(a, b); !same) return same << " (of raw, scaled, entropy)";
  if (actual.top_ids != expected.top_ids) {
    for (size_t i = 0; i < kTop; ++i) {
      if (actual.top_ids[i] == expected.top_ids[i]) continue;
      return ::testing::AssertionFailure()
             << "top id " << i << " is " << actual.top_ids[i] << ", not " << expected.top_ids[i];
    }
  }
  if (auto same = BitwiseEqual(actual.top_logprobs, expected.top_logprobs); !same) {
    return same << " (of top)";
  }
  if (auto same = BitwiseEqual(actual.chosen, expected.chosen); !same)
    return same << " (of chosen)";
  return ::testing::AssertionSuccess();
}

VocabularyScratch::VocabularyScratch(int vocabulary, size_t rows)
    : memory_(cuda::VocabularyScratchBytes(vocabulary,
                                           static_cast<int>(std::min<size_t>(rows, 100)))) {}

cuda::VocabularySchedule VocabularyScratch::Of(const cuda::VocabularySchedule& schedule) const {
  cuda::VocabularySchedule with = schedule;
  with.scratch = memory_.data();
  with.scratch_bytes = memory_.size();
  return with;
}

LogprobBatch::LogprobBatch(const std::vector<LogprobCase>& rows)
    : params_(ListsOf(rows).params),
      vocabulary_(static_cast<int>(rows[0].logits.size())),
      logits_(AllLogits(rows)),
      device_params_(params_),
      chosen_ids_(ListsOf(rows).chosen),
      raw_(rows.size()),
      scaled_(rows.size()),
      entropy_(rows.size()),
      top_ids_(rows.size() * kTop),
      top_logprobs_(rows.size() * kTop),
      chosen_(chosen_ids_.size()),
      errors_(rows.size()),
      scratch_(vocabulary_, rows.size()) {}

void LogprobBatch::Load(const std::vector<LogprobCase>& rows) {
  const LogprobLists lists = ListsOf(rows);
  params_ = lists.params;
  logits_.Load(AllLogits(rows));
  device_params_.Load(lists.params);
  chosen_ids_.Load(lists.chosen);
  for (auto* array : {&raw_, &scaled_, &entropy_, &top_logprobs_, &chosen_}) array->Poison();
  top_ids_.Poison();
  errors_.Poison();
}

void LogprobBatch::Enqueue(const cuda::VocabularySchedule& schedule, cudaStream_t stream) {
  Must(cuda::Logprobs({.rows = static_cast<int>(params_.size()),
                       .vocabulary = vocabulary_,
                       .logits = logits_.data(),
                       .row_params = device_params_.data(),
                       .chosen_ids = chosen_ids_.data(),
                       .raw = raw_.data(),
                       .scaled = scaled_.data(),
                       .entropy = entropy_.data(),
                       .top_ids = top_ids_.data(),
                       .top_logprobs = top_logprobs_.data(),
                       .chosen_logprobs = chosen_.data(),
                       .errors = errors_.data()},
                      scratch_.Of(schedule), stream));
}

std::vector<LogprobResult> LogprobBatch::Read() {
  return ResultsOf({.raw = raw_.Read(),
                    .scaled = scaled_.Read(),
                    .entropy = entropy_.Read(),
                    .top_logprobs = top_logprobs_.Read(),
                    .chosen = chosen_.Read(),
                    .top_ids = top_ids_.Read(),
                    .errors = errors_.Read()},
                   params_);
}

std::vector<LogprobResult> LogprobsOnGpu(const std::vector<LogprobCase>& rows,
                                         const cuda::VocabularySchedule& schedule) {
  LogprobBatch batch(rows);
  batch.Enqueue(schedule, nullptr);
  Must(cudaDeviceSynchronize());
  return batch.Read();
}

std::vector<LogprobResult> LogprobsOnCpu(const std::vector<LogprobCase>& rows) {
  const LogprobLists lists = ListsOf(rows);
  const std::vector<float> logits = AllLogits(rows);
  const size_t n = rows.size();
  LogprobArrays all{.raw = std::vector<float>(n),
                    .scaled = std::vector<float>(n),
                    .entropy = std::vector<float>(n),
                    .top_logprobs = std::vector<float>(n * kTop),
                    .chosen = std::vector<float>(lists.chosen.size()),
                    .top_ids = std::vector<int32_t>(n * kTop),
                    .errors = std::vector<kernels::SampleError>(n)};
  Cpu().Logprobs({.rows = static_cast<int>(n),
                  .vocabulary = static_cast<int>(rows[0].logits.size()),
                  .logits = logits.data(),
                  .row_params = lists.params.data(),
                  .chosen_ids = lists.chosen.data(),
                  .raw = all.raw.data(),
                  .scaled = all.scaled.data(),
                  .entropy = all.entropy.data(),
                  .top_ids = all.top_ids.data(),
                  .top_logprobs = all.top_logprobs.data(),
                  .chosen_logprobs = all.chosen.data(),
                  .errors = all.errors.data()});
  return ResultsOf(all, lists.params);
}

SampleBatch::SampleBatch(const std::vector<SampleCase>& rows, int vocabulary_sampled)
    : vocabulary_(static_cast<int>(rows[0].logits.size())),
      vocabulary_sampled_(vocabulary_sampled == 0 ? vocabulary_ : vocabulary_sampled),
      logits_(AllLogits(rows)),
      params_(ListsOf(rows).params),
      biases_(ListsOf(rows).biases),
      counts_(ListsOf(rows).counts),
      ids_(rows.size()),
      errors_(rows.size()),
      scratch_(vocabulary_, rows.size()) {}

void SampleBatch::Load(const std::vector<SampleCase>& rows) {
  const SampleLists lists = ListsOf(rows);
  logits_.Load(AllLogits(rows));
  params_.Load(lists.params);
  biases_.Load(lists.biases);
  counts_.Load(lists.counts);
  ids_.Poison();
  errors_.Poison();
}

void SampleBatch::Enqueue(const cuda::VocabularySchedule& schedule, cudaStream_t stream) {
  Must(cuda::Sample({.rows = static_cast<int>(ids_.size()),
                     .vocabulary = vocabulary_,
                     .vocabulary_sampled = vocabulary_sampled_,
                     .logits = logits_.data(),
                     .row_params = params_.data(),
                     .biases = biases_.data(),
                     .counts = counts_.data(),
                     .ids = ids_.data(),
                     .errors = errors_.data()},
                    scratch_.Of(schedule), stream));
}

std::vector<SampleResult> SampleBatch::Read() {
  const std::vector<int32_t> ids = ids_.Read();
  const std::vector<kernels::SampleError> errors = errors_.Read();
  std::vector<SampleResult> results;
  for (size_t row = 0; row < ids.size(); ++row) results.push_back({ids[row], errors[row]});
  return results;
}

std::vector<SampleResult> SampleOnGpu(const std::vector<SampleCase>& rows, int vocabulary_sampled,
                                      const cuda::VocabularySchedule& schedule) {
  SampleBatch batch(rows, vocabulary_sampled);
  batch.Enqueue(schedule, nullptr);
  Must(cudaDeviceSynchronize());
  return batch.Read();
}

std::vector<SampleResult> SampleOnCpu(const std::vector<SampleCase>& rows, int vocabulary_sampled) {
  const SampleLists lists = ListsOf(rows);
  const std::vector<float> logits = AllLogits(rows);
  const int vocabulary = static_cast<int>(rows[0].logits.size());
  std::vector<int32_t> ids(rows.size());
  std::vector<kernels::SampleError> errors(rows.size());
  Cpu().Sample({.rows = static_cast<int>(rows.size()),
                .vocabulary = vocabulary,
                .vocabulary_sampled = vocabulary_sampled == 0 ? vocabulary : vocabulary_sampled,
                .logits = logits.data(),
                .row_params = lists.params.data(),
                .biases = lists.biases.data(),
                .counts = lists.counts.data(),
                .ids = ids.data(),
                .errors = errors.data()});
  std::vector<SampleResult> results;
  for (size_t row = 0; row < ids.size(); ++row) results.push_back({ids[row], errors[row]});
  return results;
}

}  // namespace lockstep::testing
