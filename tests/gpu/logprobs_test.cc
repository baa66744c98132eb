// Log-probabilities on the device. The CPU backend has the contract's bits (its own tests hold it
// to plain code), so the device's must be the same: for every path, vocabulary, cluster,
// batch and neighbour. Accuracy has a bound derived from the operands.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/gpu/test_streams.h"
#include "tests/gpu/vocabulary_rig.h"
#include "tests/support/philox_data.h"
#include "tests/support/tolerance.h"

namespace lockstep {
namespace {

using kernels::cuda::KernelPath;
using testing::LogprobCase;
using testing::LogprobResult;
using testing::LogprobsOnCpu;
using testing::LogprobsOnGpu;
using testing::Same;

constexpr size_t kVocabulary = 151936;

// Rows that want everything, with ties, zeros of both signs, bans and magnitudes of many kinds.
LogprobCase RandomCase(uint32_t seed, size_t vocabulary) {
  const auto word = [&](uint32_t i) { return testing::PhiloxWord(500 + seed, i); };
  const float scales[] = {12, 3, 0.01f, 300, 0, 3e38f};
  LogprobCase row{.logits = testing::UniformData(seed, vocabulary, scales[word(0) % 6])};
  if (seed % 3 == 0) {
    for (float& z : row.logits) z = std::round(z);
  }
  if (seed % 5 == 1) row.logits[word(1) % vocabulary] = -std::numeric_limits<float>::infinity();
  if (seed % 5 == 2) row.logits[word(2) % vocabulary] = -0.0f;
  const float temperatures[] = {1, 0, 0.7f, 1e-6f, 50};
  const int32_t tops[] = {0, 1, 5, 64};
  row.params = {.target_id = static_cast<int32_t>(word(3) % vocabulary),
                .temperature = temperatures[word(4) % 5],
                .top_count = tops[word(5) % 4],
                .want_scaled = word(6) % 4 != 0,
                .want_entropy = word(7) % 2 == 0};
  if (seed % 7 == 3) row.params.target_id = -1;
  for (uint32_t i = 0; i < word(8) % 40; ++i) {
    row.chosen.push_back(static_cast<int32_t>(word(20 + i) % vocabulary));
  }
  return row;
}

std::vector<LogprobCase> RandomCases(uint32_t seed, size_t count, size_t vocabulary) {
  std::vector<LogprobCase> rows;
  for (uint32_t i = 0; i < count; ++i) rows.push_back(RandomCase(seed + i, vocabulary));
  return rows;
}

void ExpectSame(const std::vector<LogprobResult>& actual,
                const std::vector<LogprobResult>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t row = 0; row < actual.size(); ++row) {
    EXPECT_TRUE(Same(actual[row], expected[row])) << what << ", row " << row;
  }
}

class GpuLogprobsTest : public testing::GpuPathTest {
 protected:
  std::vector<LogprobResult> OnGpu(const std::vector<LogprobCase>& rows, int cluster = 8) const {
    return LogprobsOnGpu(rows, {.path = GetParam(), .cluster = cluster});
  }
  void ExpectBlindRow(const LogprobCase& row, const std::vector<size_t>& batches) const;
};

INSTANTIATE_TEST_SUITE_P(Paths, GpuLogprobsTest, testing::BothPaths(), testing::NameOfPath);

// Few ids, so that tools that watch every access come to an end.
TEST_P(GpuLogprobsTest, SmallRowsHaveTheCpuBackendsBits) {
  for (const size_t vocabulary : {1, 127, 1000, 4099}) {
    const auto rows = RandomCases(static_cast<uint32_t>(vocabulary), 12, vocabulary);
    ExpectSame(OnGpu(rows), LogprobsOnCpu(rows), absl::StrCat("vocabulary ", vocabulary));
  }
}

TEST_P(GpuLogprobsTest, HaveTheCpuBackendsBitsForEveryVocabulary) {
  for (const size_t vocabulary :
       {1, 2, 5, 127, 128, 129, 1000, 1187, 4099, 32003, 128256, 151936}) {
    const auto rows = RandomCases(static_cast<uint32_t>(vocabulary), 24, vocabulary);
    ExpectSame(OnGpu(rows), LogprobsOnCpu(rows), absl::StrCat("vocabulary ", vocabulary));
  }
}

TEST_P(GpuLogprobsTest, EveryClusterGivesTheSameBits) {
  if (GetParam() != KernelPath::kSm90) GTEST_SKIP() << "portable kernels have no clusters";
  const auto rows = RandomCases(40, 12, kVocabulary);
  const auto expected = OnGpu(rows);
  for (const int cluster : {4, 5, 7, 12, 16}) {
    ExpectSame(OnGpu(rows, cluster), expected, absl::StrCat("cluster of ", cluster));
  }
  const auto small = RandomCases(60, 12, 3000);
  const auto small_expected = OnGpu(small);
  for (const int cluster : {1, 2, 16}) {
    ExpectSame(OnGpu(small, cluster), small_expected, absl::StrCat("cluster of ", cluster));
  }
}

// Neighbours that fail, overflow, or are all ties.
std::vector<LogprobCase> Crowd(size_t rows, size_t vocabulary) {
  std::vector<LogprobCase> kinds(4);
  kinds[0] = RandomCase(77, vocabulary);
  const float fills[] = {0, NAN, 3e38f, -std::numeric_limits<float>::infinity()};
  for (size_t kind = 1; kind < 4; ++kind) {
    kinds[kind] = kinds[0];
    kinds[kind].params.top_count = kind == 2 ? 64 : 5;
    kinds[kind].logits.assign(vocabulary, fills[kind]);
  }
  std::vector<LogprobCase> crowd;
  for (size_t row = 0; row < rows; ++row) crowd.push_back(kinds[row % 4]);
  return crowd;
}

void GpuLogprobsTest::ExpectBlindRow(const LogprobCase& row,
                                     const std::vector<size_t>& batches) const {
  const LogprobResult alone = OnGpu({row})[0];
  for (const size_t rows : batches) {
    auto batch = Crowd(rows, row.logits.size());
    const size_t places[] = {0, rows * 2 / 3, rows - 1};
    for (const size_t place : places) batch[place] = row;
    const auto results = OnGpu(batch);
    for (const size_t place : places) {
      EXPECT_TRUE(Same(results[place], alone)) << "at " << place << " of " << rows;
    }
  }
}

TEST_P(GpuLogprobsTest, ARowIsBlindToItsPlaceAndNeighbours) {
  LogprobCase row = RandomCase(3, kVocabulary);
  row.logits = testing::UniformData(3, kVocabulary, 12);
  row.params = {.target_id = 4711, .temperature = 0.7f, .top_count = 20, .want_entropy = 1};
  ExpectBlindRow(row, {2, 3, 17, 64, 133, 256});
}

TEST_P(GpuLogprobsTest, EveryBatchSizeAndPlaceGivesTheBitsOfTheRowAlone) {
  constexpr size_t kFew = 524;
  LogprobCase row = RandomCase(3, kFew);
  row.logits = testing::UniformData(3, kFew, 12);
  row.params = {.target_id = 471, .temperature = 0.7f, .top_count = 20, .want_entropy = 1};
  const LogprobResult alone = OnGpu({row})[0];
  for (const size_t rows : testing::BatchSizes()) {
    for (const size_t start : {0, 1}) {
      auto batch = Crowd(rows, kFew);
      for (size_t place = start; place < rows; place += 2) batch[place] = row;
      const auto results = OnGpu(batch);
      for (size_t place = start; place < rows; place += 2) {
        ASSERT_TRUE(Same(results[place], alone)) << "at " << place << " of " << rows;
      }
    }
  }
}

TEST_P(GpuLogprobsTest, NonFiniteRowsFailAlone) {
  auto rows = RandomCases(200, 6, 5000);
  rows[1].logits[4999] = NAN;
  rows[2].logits[0] = std::numeric_limits<float>::infinity();
  rows[3].logits.assign(5000, -std::numeric_limits<float>::infinity());
  rows[1].params.top_count = rows[2].params.top_count = 7;
  const auto results = OnGpu(rows);
  ExpectSame(results, LogprobsOnCpu(rows), "failing rows");
  for (const size_t row : {1, 2, 3}) {
    EXPECT_EQ(results[row].error, kernels::SampleError::kNonFiniteLogits);
    EXPECT_EQ(results[row].raw, std::numeric_limits<float>::lowest());
  }
  EXPECT_EQ(results[0].error, kernels::SampleError::kNone);
}

TEST_P(GpuLogprobsTest, TopIdsAreDescendingWithTiesToTheLowerId) {
  LogprobCase row{.logits = std::vector<float>(kVocabulary, 1.0f),
                  .params = {.target_id = 0, .top_count = 64}};
  row.logits[100000] = 2;
  row.logits[7] = -0.0f;
  const LogprobResult result = OnGpu({row})[0];
  EXPECT_EQ(result.top_ids[0], 100000);
  for (int32_t i = 1; i < 64; ++i) {
    EXPECT_EQ(result.top_ids[static_cast<size_t>(i)], i <= 7 ? i - 1 : i);
  }
}

TEST_P(GpuLogprobsTest, AreAsCloseToTheExactOnesAsTheirRoundingsAllow) {
  LogprobCase row{.logits = testing::UniformData(2, kVocabulary, 12), .params = {.target_id = -1}};
  for (int32_t id = 0; id < static_cast<int32_t>(kVocabulary); id += 7) row.chosen.push_back(id);
  const LogprobResult result = OnGpu({row})[0];
  const double max = *std::max_element(row.logits.begin(), row.logits.end());
  double sum = 0;
  for (const float z : row.logits) sum += std::exp(static_cast<double>(z) - max);
  for (size_t i = 0; i < row.chosen.size(); ++i) {
    const double distance =
        static_cast<double>(row.logits[static_cast<size_t>(row.chosen[i])]) - max;
    const double exact = distance - std::log(sum);
    // As for the CPU backend, with 18 levels of T.
    const double u = testing::kUnitRoundoff;
    const double sum_error = 3 * u * 24 * 1.5 + 2 * u + testing::Gamma(18);
    ASSERT_NEAR(static_cast<double>(result.chosen[i]), exact,
                u * (std::abs(distance) + std::abs(exact) + 3 * std::log(sum)) + sum_error);
  }
}

TEST_P(GpuLogprobsTest, RepeatBesideABusyStream) {
  const auto rows = RandomCases(300, 40, kVocabulary);
  const auto expected = OnGpu(rows);
  testing::LogprobBatch batch(rows);
  testing::RunBesideABusyStream(
      20, [&](cudaStream_t stream) { batch.Enqueue({.path = GetParam()}, stream); },
      [&](int run) { ExpectSame(batch.Read(), expected, absl::StrCat("run ", run)); });
}

TEST_P(GpuLogprobsTest, ACapturedGraphServesOtherContents) {
  auto first = RandomCases(400, 5, 32003);
  auto second = RandomCases(410, 5, 32003);
  for (size_t row = 0; row < 5; ++row) second[row].chosen.resize(first[row].chosen.size(), 3);
  testing::LogprobBatch batch(first);
  testing::ReplayAfter([&](cudaStream_t stream) { batch.Enqueue({.path = GetParam()}, stream); },
                       [&] { batch.Load(second); });
  ExpectSame(batch.Read(), LogprobsOnCpu(second), "other contents");
}

TEST_P(GpuLogprobsTest, RefuseShapesThatTheyDoNotHave) {
  const testing::DeviceArray<uint8_t> scratch(size_t{4} << 20);
  const auto call = [&](int vocabulary, int cluster) {
    return kernels::cuda::Logprobs({.rows = 1, .vocabulary = vocabulary},
                                   {.path = GetParam(),
                                    .cluster = cluster,
                                    .scratch = scratch.data(),
                                    .scratch_bytes = scratch.size()},
                                   nullptr);
  };
  EXPECT_EQ(call(0, 8), cudaErrorInvalidValue);
  EXPECT_EQ(call(1 << 20, 16), cudaErrorInvalidValue);
  if (GetParam() == KernelPath::kSm90) {
    EXPECT_EQ(call(1000, 0), cudaErrorInvalidValue);
    EXPECT_EQ(call(1000, 17), cudaErrorInvalidValue);
    EXPECT_EQ(call(151936, 1), cudaErrorInvalidValue);
  } else {
    EXPECT_EQ(call(kernels::cuda::kPortableVocabularyMax + 1, 8), cudaErrorInvalidValue);
    EXPECT_EQ(
        kernels::cuda::Logprobs({.rows = 1, .vocabulary = 1000}, {.path = GetParam()}, nullptr),
        cudaErrorInvalidValue)
        << "without scratch";
  }
}

}  // namespace
}  // namespace lockstep
