// Log-probabilities: exact bits against plain code, error against fp64, ties, extremes, errors.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/kernels/contract_reference.h"
#include "tests/kernels/kernel_test.h"

namespace lockstep::kernels {
namespace {

using testing::BitwiseEqual;
using testing::Gamma;
using testing::kUnitRoundoff;
using testing::UniformData;

constexpr float kLowest = std::numeric_limits<float>::lowest();

struct Results {
  std::vector<float> raw, scaled, entropy, top_logprobs, chosen;
  std::vector<int32_t> top_ids;
  std::vector<SampleError> errors;
};

class LogprobsTest : public KernelTest {
 protected:
  Results Run(const std::vector<float>& logits, const std::vector<LogprobRow>& rows,
              const std::vector<int32_t>& chosen_ids = {}) {
    const size_t n = rows.size();
    float* raw = Put(std::vector<float>(n));
    float* scaled = Put(std::vector<float>(n));
    float* entropy = Put(std::vector<float>(n));
    int32_t* top_ids = Put(std::vector<int32_t>(n * kTopLogprobsMax));
    float* top_logprobs = Put(std::vector<float>(n * kTopLogprobsMax));
    float* chosen = Put(std::vector<float>(chosen_ids.size()));
    SampleError* errors = Put(std::vector<SampleError>(n));
    kernels().Logprobs({.rows = static_cast<int>(n),
                        .vocabulary = static_cast<int>(logits.size() / n),
                        .logits = Put(logits),
                        .row_params = Put(rows),
                        .chosen_ids = Put(chosen_ids),
                        .raw = raw,
                        .scaled = scaled,
                        .entropy = entropy,
                        .top_ids = top_ids,
                        .top_logprobs = top_logprobs,
                        .chosen_logprobs = chosen,
                        .errors = errors});
    return {.raw = Get(raw, n),
            .scaled = Get(scaled, n),
            .entropy = Get(entropy, n),
            .top_logprobs = Get(top_logprobs, n * kTopLogprobsMax),
            .chosen = Get(chosen, chosen_ids.size()),
            .top_ids = Get(top_ids, n * kTopLogprobsMax),
            .errors = Get(errors, n)};
  }

  // Logprobs of every id of one row.
  std::vector<float> All(const std::vector<float>& logits) {
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    return Run(logits, {{.target_id = -1, .chosen_end = static_cast<int32_t>(ids.size())}}, ids)
        .chosen;
  }
};

TEST_P(LogprobsTest, IsTheContractsForEveryIdAndVocabulary) {
  for (const size_t vocabulary : {1, 2, 31, 64, 100, 512, 1187}) {
    const auto z = UniformData(1, vocabulary, 12);
    ASSERT_TRUE(BitwiseEqual(All(z), reference::LogSoftmax(z))) << vocabulary;
  }
}

TEST_P(LogprobsTest, IsAsCloseToTheExactOneAsItsRoundingsAllow) {
  const auto z = UniformData(2, 5000, 12);
  const auto got = All(z);
  const double max = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const float value : z) sum += std::exp(value - max);
  for (size_t i = 0; i < z.size(); ++i) {
    const double distance = z[i] - max;
    const double exact = distance - std::log(sum);
    // The distance (1 rounding), the sum's relative error (the argument of exp2 carries two
    // roundings and the constant's: 3 u * 24 * log2(e) at most; 1 ulp of exp2; 13 levels), the
    // logarithm (1.5 ulp) and the last subtraction.
    const double sum_error = 3 * kUnitRoundoff * 24 * 1.5 + 2 * kUnitRoundoff + Gamma(13);
    ASSERT_NEAR(
        got[i], exact,
        kUnitRoundoff * (std::abs(distance) + std::abs(exact) + 3 * std::log(sum)) + sum_error);
  }
}

TEST_P(LogprobsTest, ScaledIsTheLogSoftmaxOfTheScaledRow) {
  const auto z = UniformData(3, 300, 12);
  for (const float temperature : {0.5f, 2.0f, 0.7f, 1e-6f, 100.0f, 1.0f, 0.0f}) {
    const auto results = Run(z, {{.target_id = 123, .temperature = temperature}});
    const auto expected =
        reference::LogSoftmax(reference::Scaled(z, temperature == 0 ? 1 : temperature));
    EXPECT_TRUE(BitwiseEqual(results.scaled, {&expected[123], 1})) << temperature;
    EXPECT_LE(results.scaled[0], 0);
    EXPECT_GE(results.scaled[0], kLowest);
  }
}

TEST_P(LogprobsTest, EntropyIsTheContractsAndClose) {
  for (const float scale : {0.0f, 1.0f, 12.0f, 1000.0f}) {
    auto z = UniformData(4, 700, scale);
    z[9] = -INFINITY;
    const auto results = Run(z, {{.want_entropy = 1}});
    const float expected = reference::Entropy(z);
    EXPECT_TRUE(BitwiseEqual(results.entropy, {&expected, 1})) << scale;
    double sum = 0, weighted = 0;
    const double max = *std::max_element(z.begin(), z.end());
    for (const float value : z) {
      const double e = std::exp(value - max);
      sum += e;
      if (e > 0) weighted += e * (value - max);
    }
    const double magnitude = std::log(sum) - weighted / sum;
    EXPECT_NEAR(results.entropy[0], magnitude, Gamma(200) * magnitude + 1e-30) << scale;
  }
}

TEST_P(LogprobsTest, TopIdsDescendWithTiesToTheLowerId) {
  auto z = UniformData(5, 777, 3);
  for (float& value : z) value = std::round(value * 20) / 20;  // Many ties.
  std::vector<int32_t> order(z.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return z[static_cast<size_t>(a)] > z[static_cast<size_t>(b)];
  });
  const auto logprobs = reference::LogSoftmax(z);
  for (const int count : {0, 1, 5, 64}) {
    const auto results = Run(z, {{.target_id = -1, .top_count = count}});
    for (int i = 0; i < kTopLogprobsMax; ++i) {
      const size_t at = static_cast<size_t>(i);
      ASSERT_EQ(results.top_ids[at], i < count ? order[at] : -1) << count;
      ASSERT_EQ(results.top_logprobs[at],
                i < count ? logprobs[static_cast<size_t>(order[at])] : 0.0f);
    }
  }
}

TEST_P(LogprobsTest, MoreTopIdsThanVocabularyGivesTheWholeVocabulary) {
  const auto results = Run({1, 3, 2}, {{.target_id = -1, .top_count = 10}});
  EXPECT_EQ(std::vector<int32_t>(results.top_ids.begin(), results.top_ids.begin() + 4),
            (std::vector<int32_t>{1, 2, 0, -1}));
}

TEST_P(LogprobsTest, IsFiniteAndNeverPositive) {
  const std::vector<std::vector<float>> hostile = {
      {0, -INFINITY, -INFINITY}, {3e38f, -3e38f, 0}, {-3e38f, -3e38f, -INFINITY}, {100, -1000, 0}};
  for (const auto& z : hostile) {
    for (const float value : All(z)) {
      ASSERT_LE(value, 0);
      ASSERT_GE(value, kLowest);
    }
    for (const float temperature : {1e-6f, 1e30f}) {
      const auto results = Run(z, {{.target_id = 0, .temperature = temperature}});
      ASSERT_LE(results.scaled[0], 0);
      ASSERT_GE(results.scaled[0], kLowest);
    }
  }
}

TEST_P(LogprobsTest, RowAloneEqualsRowAmongNeighbours) {
  const auto z = UniformData(6, 222, 9);
  const LogprobRow row{.target_id = 5, .temperature = 0.8f, .top_count = 3, .want_entropy = 1};
  const Results alone = Run(z, {row});
  for (int batch = 1; batch <= 33; batch += slow_target() ? 8 : 2) {
    for (int place = 0; place < batch; place += 5) {
      std::vector<float> logits;
      std::vector<LogprobRow> rows(static_cast<size_t>(batch), row);
      const float fills[] = {1e38f, NAN, 0};
      for (int i = 0; i < batch; ++i) {
        const auto neighbour = std::vector<float>(z.size(), fills[i % 3]);
        const auto& source = i == place ? z : neighbour;
        logits.insert(logits.end(), source.begin(), source.end());
      }
      const Results results = Run(logits, rows);
      const size_t at = static_cast<size_t>(place);
      ASSERT_EQ(results.errors[at], SampleError::kNone);
      ASSERT_TRUE(BitwiseEqual({&results.raw[at], 1}, alone.raw));
      ASSERT_TRUE(BitwiseEqual({&results.scaled[at], 1}, alone.scaled));
      ASSERT_TRUE(BitwiseEqual({&results.entropy[at], 1}, alone.entropy));
      ASSERT_TRUE(BitwiseEqual({&results.top_logprobs[at * kTopLogprobsMax], 3},
                               {alone.top_logprobs.data(), 3}));
    }
  }
}

TEST_P(LogprobsTest, NonFiniteRowsFailAloneWithTheLowestFiniteValue) {
  std::vector<float> logits = UniformData(7, 4 * 50);
  logits[50] = NAN;
  logits[149] = INFINITY;
  std::fill(logits.begin() + 150, logits.end(), -INFINITY);
  const auto results = Run(logits,
                           {{.target_id = 0},
                            {.target_id = 0, .top_count = 2},
                            {.target_id = 0, .want_entropy = 1},
                            {.target_id = 0, .chosen_end = 1}},
                           {4});
  EXPECT_EQ(results.errors[0], SampleError::kNone);
  for (const size_t row : {1, 2, 3}) {
    EXPECT_EQ(results.errors[row], SampleError::kNonFiniteLogits);
    EXPECT_EQ(results.raw[row], kLowest);
    EXPECT_EQ(results.scaled[row], kLowest);
  }
  EXPECT_EQ(results.top_logprobs[kTopLogprobsMax + 1], kLowest);
  EXPECT_EQ(results.entropy[2], kLowest);
  EXPECT_EQ(results.chosen[0], kLowest);
}

INSTANTIATE_TEST_SUITE_P(Cpu, LogprobsTest, ::testing::ValuesIn(AllConfigurations()), NameOf);

}  // namespace
}  // namespace lockstep::kernels
