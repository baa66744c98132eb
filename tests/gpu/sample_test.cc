// The sampler on the device. The CPU backend has the contract's bits (its own tests hold it to a
// full sort in plain code), so the device must draw the same ids with the same errors: for every
// path, vocabulary, parameter, cluster, batch and neighbour. The noise itself is compared bit for
// bit.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/ops.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/test_streams.h"
#include "tests/gpu/vocabulary_rig.h"
#include "tests/kernels/contract_reference.h"
#include "tests/support/bitwise.h"
#include "tests/support/philox_data.h"

namespace lockstep {
namespace {

using kernels::SampleError;
using kernels::cuda::KernelPath;
using testing::DeviceArray;
using testing::SampleCase;
using testing::SampleOnCpu;
using testing::SampleOnGpu;
using testing::SampleResult;

constexpr size_t kVocabulary = 151936;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows that use every parameter, over logits with many ties or none.
SampleCase RandomCase(uint32_t seed, size_t vocabulary) {
  const auto word = [&](uint32_t i) { return testing::PhiloxWord(1000 + seed, i); };
  const float scales[] = {8, 2, 0.05f, 100};
  SampleCase row{.logits = testing::UniformData(seed, vocabulary, scales[word(0) % 4])};
  if (seed % 2 == 0) {
    for (float& z : row.logits) z = std::round(z);
  }
  const float temperatures[] = {1, 0.5f, 0.01f, 3, 0, 0.7f, 1, 1e-6f};
  const float top_ps[] = {1, 0.9f, 0.5f, 1e-6f, 0.999f, 1};
  const float min_ps[] = {0, 0, 0.1f, 1, 1e-40f, 0};
  row.params = {.sub_seed = uint64_t{word(1)} << 32 | word(2),
                .position = word(3),
                .temperature = temperatures[word(4) % 8],
                .top_k = static_cast<int32_t>(word(5) % 3 == 0 ? word(6) % 60 : 0),
                .top_p = top_ps[word(7) % 6],
                .min_p = min_ps[word(8) % 6]};
  if (word(9) % 3 == 0) {
    row.params.repetition_penalty = 1.3f;
    row.params.frequency_penalty = 0.7f;
    row.params.presence_penalty = 0.3f;
    for (size_t id = word(10) % 7; id < vocabulary; id += 1 + word(11) % 50) {
      row.counts.push_back({.id = static_cast<int32_t>(id),
                            .output_count = static_cast<int32_t>(id % 3),
                            .in_prompt = 1});
    }
  }
  for (uint32_t i = 0; i < word(12) % 3 * 700; ++i) {
    // Ids repeat, near and far in the list.
    const uint32_t id = i % 5 == 0 ? word(20 + i) % 3 : word(20 + i);
    row.biases.push_back({.id = static_cast<int32_t>(id % vocabulary),
                          .value = i % 9 == 0 ? -kInfinity : testing::PhiloxUniform(seed, i) * 3});
  }
  return row;
}

std::vector<SampleCase> RandomCases(uint32_t seed, size_t count, size_t vocabulary) {
  std::vector<SampleCase> rows;
  for (uint32_t i = 0; i < count; ++i) rows.push_back(RandomCase(seed + i, vocabulary));
  return rows;
}

void ExpectSame(const std::vector<SampleResult>& actual, const std::vector<SampleResult>& expected,
                const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t row = 0; row < actual.size(); ++row) {
    EXPECT_EQ(actual[row].id, expected[row].id) << what << ", row " << row;
    EXPECT_EQ(actual[row].error, expected[row].error) << what << ", row " << row;
  }
}

class NoiseTest : public testing::GpuTest {};

TEST_F(NoiseTest, NoiseHasTheContractsBits) {
  for (const auto& [seed, position] : {std::pair(uint64_t{1}, 0u), std::pair(~uint64_t{0}, ~0u),
                                       std::pair(uint64_t{0x123456789ABCDEF}, 70000u)}) {
    const DeviceArray<float> noise(kVocabulary - 1);
    testing::Must(kernels::cuda::Noise({.sub_seed = seed,
                                        .position = position,
                                        .vocabulary = static_cast<int>(noise.size()),
                                        .noise = noise.data()},
                                       nullptr));
    std::vector<float> expected;
    for (size_t id = 0; id < noise.size(); ++id) {
      expected.push_back(kernels::reference::NoiseOf(seed, position, static_cast<int32_t>(id)));
    }
    EXPECT_TRUE(testing::BitwiseEqual(noise.Read(), expected)) << seed;
  }
}

// Both ends, where the two logarithms bend, and everything between in steps.
TEST_F(NoiseTest, NoiseOfWordsHasTheContractsBitsAndIsNeverPassedOver) {
  std::vector<uint32_t> words;
  for (uint32_t i = 0; i < 100000; ++i) {
    words.push_back(i);
    words.push_back(~i);
    words.push_back(0x80000000u - 50000 + i);
    words.push_back(i * 42949u);
  }
  const DeviceArray<uint32_t> device_words(words);
  const DeviceArray<float> noise(words.size());
  const DeviceArray<float> bounds(words.size());
  const DeviceArray<uint32_t> limits(words.size());
  testing::Must(kernels::cuda::NoiseOfWords({.words = device_words.data(),
                                             .count = static_cast<int>(words.size()),
                                             .noise = noise.data(),
                                             .bounds = bounds.data(),
                                             .limits = limits.data()},
                                            nullptr));
  const std::vector<float> got = noise.Read();
  const std::vector<float> bound = bounds.Read();
  const std::vector<uint32_t> limit = limits.Read();
  for (size_t i = 0; i < words.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]),
              std::bit_cast<uint32_t>(kernels::reference::Gumbel(words[i])))
        << words[i];
    ASSERT_GE(bound[i], got[i]) << words[i];
    ASSERT_TRUE(std::isfinite(bound[i])) << words[i];
    ASSERT_GE(limit[i], ~words[i]) << words[i];
  }
}

class GpuSampleTest : public testing::GpuPathTest {
 protected:
  std::vector<SampleResult> OnGpu(const std::vector<SampleCase>& rows, int vocabulary_sampled = 0,
                                  int cluster = 8) const {
    return SampleOnGpu(rows, vocabulary_sampled, {.path = GetParam(), .cluster = cluster});
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, GpuSampleTest, testing::BothPaths(), testing::NameOfPath);

// Few ids, so that tools that watch every access come to an end.
TEST_P(GpuSampleTest, DrawsTheCpuBackendsIdsFromSmallRows) {
  for (const size_t vocabulary : {1, 127, 1000, 4099}) {
    const auto rows = RandomCases(static_cast<uint32_t>(vocabulary), 40, vocabulary);
    ExpectSame(OnGpu(rows), SampleOnCpu(rows), absl::StrCat("vocabulary ", vocabulary));
  }
}

TEST_P(GpuSampleTest, DrawsTheCpuBackendsIdsForEveryVocabulary) {
  for (const size_t vocabulary : {1, 2, 5, 127, 128, 129, 1000, 4099, 32003}) {
    const auto rows = RandomCases(static_cast<uint32_t>(vocabulary), 200, vocabulary);
    ExpectSame(OnGpu(rows), SampleOnCpu(rows), absl::StrCat("vocabulary ", vocabulary));
  }
}

TEST_P(GpuSampleTest, DrawsTheCpuBackendsIdsFromAWholeVocabulary) {
  const auto rows = RandomCases(5000, 200, kVocabulary);
  ExpectSame(OnGpu(rows), SampleOnCpu(rows), "whole");
  ExpectSame(OnGpu(rows, 151643), SampleOnCpu(rows, 151643), "151643 sampled");
}

TEST_P(GpuSampleTest, EveryClusterDrawsTheSame) {
  if (GetParam() != KernelPath::kSm90) GTEST_SKIP() << "portable kernels have no clusters";
  const auto rows = RandomCases(6000, 60, kVocabulary);
  const auto expected = OnGpu(rows);
  for (const int cluster : {4, 5, 7, 12, 16}) {
    ExpectSame(OnGpu(rows, 0, cluster), expected, absl::StrCat("cluster of ", cluster));
  }
  const auto small = RandomCases(6100, 60, 3000);
  const auto small_expected = OnGpu(small);
  for (const int cluster : {1, 2, 16}) {
    ExpectSame(OnGpu(small, 0, cluster), small_expected, absl::StrCat("cluster of ", cluster));
  }
}

// The drawn id hides most differences of logits, so that a batch is compared for many rows.
TEST_P(GpuSampleTest, RowsAreBlindToTheirPlaceAndNeighbours) {
  std::vector<SampleCase> rows = RandomCases(7000, 12, kVocabulary);
  std::vector<SampleResult> alone;
  for (const SampleCase& row : rows) alone.push_back(OnGpu({row})[0]);
  const float fills[] = {NAN, 3e38f, kInfinity, -kInfinity};
  for (const size_t count : {13, 64, 133, 256}) {
    std::vector<SampleCase> batch;
    for (size_t i = 0; i < count; ++i) {
      batch.push_back(rows[i % 12]);
      if (i % 3 == 1) batch.back().logits.assign(kVocabulary, fills[i / 3 % 4]);
    }
    const auto results = OnGpu(batch);
    for (size_t i = 0; i < count; ++i) {
      if (i % 3 != 1) {
        EXPECT_EQ(results[i], alone[i % 12]) << "at " << i << " of " << count;
      }
    }
  }
}

// Rows of many parameters at every second place, others that fail between them.
TEST_P(GpuSampleTest, EveryBatchSizeAndPlaceDrawsWhatTheRowDrawsAlone) {
  constexpr size_t kFew = 524;
  const auto rows = RandomCases(7100, 40, kFew);
  std::vector<SampleResult> alone;
  for (const SampleCase& row : rows) alone.push_back(OnGpu({row})[0]);
  std::vector<SampleCase> hostile;
  for (const float fill : {NAN, 3e38f, kInfinity, -kInfinity}) {
    hostile.push_back(rows[0]);
    hostile.back().logits.assign(kFew, fill);
  }
  for (const size_t count : testing::BatchSizes()) {
    for (const size_t start : {0, 1}) {
      std::vector<SampleCase> batch;
      for (size_t i = 0; i < count; ++i) {
        batch.push_back(i % 2 == start ? rows[i * 7 % 40] : hostile[i / 2 % 4]);
      }
      const auto results = OnGpu(batch);
      for (size_t i = start; i < count; i += 2) {
        ASSERT_EQ(results[i], alone[i * 7 % 40]) << "at " << i << " of " << count;
      }
    }
  }
}

TEST_P(GpuSampleTest, FailsRowsByTheirOwnNumbersAlone) {
  std::vector<SampleCase> rows(8);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits = testing::UniformData(static_cast<uint32_t>(i), 5000, 4);
    rows[i].params.top_p = i % 2 == 0 ? 1 : 0.9f;
  }
  rows[1].logits[4999] = NAN;
  rows[2].logits[0] = kInfinity;
  rows[3].biases = {{.id = 17, .value = kInfinity}};
  rows[4].biases = {{.id = 17, .value = -kInfinity}, {.id = 17, .value = kInfinity}};
  for (int32_t id = 0; id < 5000; ++id) {
    rows[5].biases.push_back({.id = id, .value = -kInfinity});
    if (id != 4321) rows[6].biases.push_back({.id = id, .value = -kInfinity});
  }
  rows[7].logits.assign(5000, -kInfinity);
  rows[7].params.temperature = 0;
  const auto results = OnGpu(rows);
  ExpectSame(results, SampleOnCpu(rows), "failing rows");
  for (const size_t row : {1, 2, 3, 4}) {
    EXPECT_EQ(results[row].error, SampleError::kNonFiniteLogits) << row;
  }
  EXPECT_EQ(results[5].error, SampleError::kAllBanned);
  EXPECT_EQ(results[6].id, 4321);
  EXPECT_EQ(results[7].error, SampleError::kAllBanned);
  EXPECT_EQ(results[0].error, SampleError::kNone);
}

TEST_P(GpuSampleTest, TopPLeavesOutTheEqualsThatTopKCutOff) {
  std::vector<SampleCase> rows;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    rows.push_back({.logits = std::vector<float>(5000, 1.0f),
                    .params = {.sub_seed = seed, .top_k = 3, .top_p = 0.999f}});
  }
  for (const SampleResult& result : OnGpu(rows)) EXPECT_LT(result.id, 3);
}

// As many logits as a row can have, all but one just below the largest: their weights have bits in
// every limb, and meet in one bin. The id that wins without a filter is the last that top-p keeps,
// so that the draw shows whether a sum of limbs lost anything.
TEST_P(GpuSampleTest, AddsTheLargestWeightsOfTheWidestRow) {
  constexpr int kWidest = kernels::cuda::kPortableVocabularyMax;
  SampleCase row{.logits = std::vector<float>(kWidest, 1.99999f), .params = {.sub_seed = 9}};
  row.logits[77] = 2;
  const int32_t winner = SampleOnCpu({row})[0].id;
  ASSERT_GT(winner, kWidest / 4);
  row.params.top_p = (static_cast<float>(winner) + 2) / kWidest;
  ASSERT_EQ(SampleOnCpu({row})[0].id, winner);
  EXPECT_EQ(OnGpu({row})[0].id, winner);
}

// Constrained decoding bans nearly everything, id by id.
TEST_P(GpuSampleTest, TakesALongListOfBans) {
  SampleCase row{.logits = testing::UniformData(1, kVocabulary, 8)};
  for (int32_t id = 0; id < static_cast<int32_t>(kVocabulary); ++id) {
    if (id % 1000 != 7) row.biases.push_back({.id = id, .value = -kInfinity});
  }
  for (const float top_p : {1.0f, 0.8f}) {
    row.params = {.sub_seed = 5, .top_p = top_p};
    ExpectSame(OnGpu({row}), SampleOnCpu({row}), absl::StrCat("top-p ", top_p));
  }
}

class CountDrawnTest : public testing::GpuTest {};

// Long lists, in which what was drawn stands anywhere or nowhere.
TEST_F(CountDrawnTest, GivesTheCountsOfTheCpuBackend) {
  constexpr int kRows = 300;
  std::vector<kernels::IdCount> listed;
  std::vector<kernels::SamplingRow> params;
  std::vector<int32_t> drawn;
  for (uint32_t row = 0; row < kRows; ++row) {
    const auto word = [&](uint64_t i) { return testing::PhiloxWord(row, i); };
    const auto begin = static_cast<int32_t>(listed.size());
    const uint32_t length = word(0) % 3 == 0 ? word(1) % 4 : word(1) % 2000;
    for (uint32_t i = 0; i < length; ++i) {
      listed.push_back({.id = static_cast<int32_t>(3 * i),
                        .output_count = static_cast<int32_t>(word(i + 10) % 3),
                        .in_prompt = static_cast<int32_t>(word(i + 10) / 4 % 2)});
    }
    listed.push_back({.id = -1});
    params.push_back({.count_begin = begin,
                      .count_end = static_cast<int32_t>(listed.size()),
                      .drawn_slot = word(2) % 5 == 0 ? -1 : static_cast<int32_t>(word(3) % kRows)});
    drawn.push_back(word(4) % 9 == 0 ? -1 : static_cast<int32_t>(word(5) % 6001));
  }
  std::vector<kernels::IdCount> expected = listed;
  kernels::cpu::CountDrawn({.rows = kRows,
                            .row_params = params.data(),
                            .drawn_ids = drawn.data(),
                            .counts = expected.data()});
  const testing::DeviceArray<kernels::SamplingRow> device_params(params);
  const testing::DeviceArray<int32_t> device_drawn(drawn);
  const testing::DeviceArray<kernels::IdCount> device_counts(listed);
  testing::Must(kernels::cuda::CountDrawn({.rows = kRows,
                                           .row_params = device_params.data(),
                                           .drawn_ids = device_drawn.data(),
                                           .counts = device_counts.data()},
                                          nullptr));
  testing::Must(cudaDeviceSynchronize());
  const std::vector<kernels::IdCount> counted = device_counts.Read();
  for (size_t i = 0; i < counted.size(); ++i) {
    ASSERT_TRUE(counted[i].id == expected[i].id &&
                counted[i].output_count == expected[i].output_count &&
                counted[i].in_prompt == expected[i].in_prompt)
        << "entry " << i;
  }
}

TEST_P(GpuSampleTest, RepeatsBesideABusyStream) {
  const auto rows = RandomCases(8000, 60, kVocabulary);
  const auto expected = OnGpu(rows);
  testing::SampleBatch batch(rows);
  testing::RunBesideABusyStream(
      20, [&](cudaStream_t stream) { batch.Enqueue({.path = GetParam()}, stream); },
      [&](int run) { ExpectSame(batch.Read(), expected, absl::StrCat("run ", run)); });
}

TEST_P(GpuSampleTest, ACapturedGraphServesOtherContents) {
  std::vector<SampleCase> first(6);
  std::vector<SampleCase> second(6);
  for (uint32_t i = 0; i < 6; ++i) {
    first[i].logits = testing::UniformData(i, 32003, 4);
    second[i] = RandomCase(8100 + i, 32003);
    second[i].biases.clear();
    second[i].counts.clear();
  }
  testing::SampleBatch batch(first);
  testing::ReplayAfter([&](cudaStream_t stream) { batch.Enqueue({.path = GetParam()}, stream); },
                       [&] { batch.Load(second); });
  ExpectSame(batch.Read(), SampleOnCpu(second), "other contents");
}

}  // namespace
}  // namespace lockstep
