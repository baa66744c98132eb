// What the log-probabilities of an answer mean, and that there is one for every token however the
// answer ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "services/client/arrays.h"
#include "services/worker/model/safetensors.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"
#include "tests/support/tolerance.h"

namespace lockstep {
namespace {

using client::ReadFloats;
using client::ReadIds;
using testing::CallNow;
using testing::ClusterHarness;
using testing::Gamma;
using testing::GenerateAll;
using testing::GenerateCalls;
using testing::kUnitRoundoff;
using testing::RolloutStub;
using testing::SharedClusterTest;

constexpr char kModel[] = "deploy/demo-model";
constexpr size_t kVocabulary = 512;

// Values of one bf16 tensor of the demo model.
std::vector<double> Tensor(const worker::SafetensorsFile& file, const std::string& name) {
  for (const worker::SafetensorsEntry& entry : file.entries()) {
    if (entry.name != name) continue;
    const auto bytes = file.Data(entry);
    std::vector<double> values;
    for (size_t i = 0; i < bytes.size(); i += 2) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + i, 2);
      values.push_back(std::bit_cast<float>(uint32_t{half} << 16));
    }
    return values;
  }
  ADD_FAILURE() << name << " is not in the checkpoint";
  return {};
}

// No logit of the demo model is larger: a logit is the product of a row of the (tied) embedding
// with a normalised vector, whose length is at most sqrt(hidden) times the largest weight of the
// norm, up to the two roundings to bf16.
double LargestLogit() {
  const auto file = worker::SafetensorsFile::Open(std::string(kModel) + "/model.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  const std::vector<double> norm = Tensor(*file, "model.norm.weight");
  const std::vector<double> rows = Tensor(*file, "model.embed_tokens.weight");
  double weight = 0;
  for (const double w : norm) weight = std::max(weight, std::abs(w));
  double longest = 0;
  for (size_t row = 0; row < rows.size(); row += norm.size()) {
    double square = 0;
    for (size_t i = 0; i < norm.size(); ++i) square += rows[row + i] * rows[row + i];
    longest = std::max(longest, std::sqrt(square));
  }
  return weight * std::sqrt(static_cast<double>(norm.size())) * longest * std::pow(1 + 0x1p-8, 2);
}

// log_softmax(row / temperature) in double, with a bound on what separates it from the service's,
// when `row` holds raw logprobs in fp32 and `temperature` is a power of two, so that the division
// is exact. Raw logprobs are the logits up to one constant, which the softmax does not see.
struct ScaledRow {
  ScaledRow(const std::vector<float>& row, double temperature, double logit_max) {
    double sum = 0;
    for (const float raw : row) sum += std::exp(raw / temperature);
    const double lse = std::log(sum);
    // Of a raw logprob: the distance to the largest logit and the last subtraction are rounded.
    double mean_error = 0;
    for (const float raw : row) {
      values.push_back(raw / temperature - lse);
      raw_errors.push_back(2 * kUnitRoundoff * std::abs(raw) / temperature);
      mean_error += std::exp(values.back()) * raw_errors.back();
    }
    // Of the service's scaled logprob: the argument of exp2 (its product, its offset and the
    // constant), one ulp of exp2 itself, the levels of the tree, the logarithm.
    const double log_sum = -*std::max_element(values.begin(), values.end());
    common = mean_error + 5 * kUnitRoundoff * logit_max / temperature + 2 * kUnitRoundoff +
             Gamma(std::bit_width(row.size())) + 3 * kUnitRoundoff * log_sum;
  }
  double Bound(size_t id) const {
    // The factor covers products of two roundings.
    return 1.001 * (raw_errors[id] + common + 2 * kUnitRoundoff * std::abs(values[id]));
  }
  std::vector<double> values;
  std::vector<double> raw_errors;
  double common = 0;
};

v1::GenerateRequest Story(uint64_t seed, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text("Tell me a story:");
  request.set_seed(seed);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// Story whose answer carries the raw logprob of every id of the vocabulary at every position.
v1::GenerateRequest WithFullRows(v1::GenerateRequest request) {
  for (size_t id = 0; id < kVocabulary; ++id) {
    request.mutable_logprobs()->add_chosen_ids(static_cast<int64_t>(id));
  }
  return request;
}

// The row of position `at`.
std::vector<float> RowAt(const std::vector<float>& rows, size_t at) {
  const auto begin = rows.begin() + static_cast<ptrdiff_t>(at * kVocabulary);
  return {begin, begin + kVocabulary};
}

class LogprobsTest : public SharedClusterTest<LogprobsTest> {
 protected:
  static v1::Sample Generate(const v1::GenerateRequest& request) {
    const auto answer = GenerateAll(stub(), {request})[0];
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->samples(0) : v1::Sample();
  }

  // One entry for each token in everything that comes per token.
  static void ExpectEqualLengths(const v1::Sample& sample) {
    EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
    EXPECT_EQ(sample.logprobs().scaled().size(), sample.token_ids().size());
    EXPECT_EQ(sample.logprobs().entropy().size(), sample.token_ids().size());
    EXPECT_EQ(sample.logprobs().top_ids().size(), 3 * sample.token_ids().size());
    EXPECT_EQ(sample.logprobs().top_logprobs().size(), 3 * sample.token_ids().size());
    int64_t versions = 0;
    for (const v1::VersionRun& run : sample.weight_versions()) versions += run.count();
    EXPECT_EQ(4 * versions, static_cast<int64_t>(sample.token_ids().size()));
    EXPECT_EQ(sample.usage().generated_tokens(), versions);
    // Padding would be exactly 0, which no token that had a rival ever has.
    for (const float raw : ReadFloats(sample.logprobs().raw())) EXPECT_LT(raw, 0);
  }
  static v1::GenerateRequest WithAllLogprobs(v1::GenerateRequest request) {
    request.mutable_logprobs()->set_top_count(3);
    request.mutable_logprobs()->set_entropy(true);
    return request;
  }
};

TEST_F(LogprobsTest, ScaledIsTheLogSoftmaxOfTheWholeRowOverTheTemperature) {
  const double logit_max = LargestLogit();
  for (const float temperature : {0.5f, 0.25f, 2.0f}) {
    v1::GenerateRequest request = WithFullRows(Story(1, 100));
    request.mutable_sampling()->set_temperature(temperature);
    const v1::Sample sample = Generate(request);
    const auto ids = ReadIds(sample.token_ids());
    const auto rows = ReadFloats(sample.logprobs().chosen_logprobs());
    const auto scaled = ReadFloats(sample.logprobs().scaled());
    ASSERT_EQ(rows.size(), ids.size() * kVocabulary);
    for (size_t at = 0; at < ids.size(); ++at) {
      const ScaledRow expected(RowAt(rows, at), temperature, logit_max);
      ASSERT_NEAR(scaled[at], expected.values[ids[at]], expected.Bound(ids[at]))
          << "position " << at << ", temperature " << temperature;
    }
  }
}

TEST_F(LogprobsTest, FiltersLeaveLogprobsOfTheWholeDistribution) {
  v1::GenerateRequest request = WithFullRows(Story(2, 100));
  request.mutable_sampling()->set_temperature(2);
  request.mutable_sampling()->set_top_k(50);
  request.mutable_sampling()->set_top_p(0.9f);
  request.mutable_sampling()->set_min_p(0.01f);
  const v1::Sample sample = Generate(request);
  const auto ids = ReadIds(sample.token_ids());
  const auto raw = ReadFloats(sample.logprobs().raw());
  const auto rows = ReadFloats(sample.logprobs().chosen_logprobs());
  const double logit_max = LargestLogit();
  ASSERT_EQ(rows.size(), ids.size() * kVocabulary);
  for (size_t at = 0; at < ids.size(); ++at) {
    const std::vector<float> row = RowAt(rows, at);
    double sum = 0;
    for (const float value : row) {
      ASSERT_TRUE(std::isfinite(value));
      sum += std::exp(double{value});
    }
    // The whole vocabulary has all of the probability. What the sum errs by is the mean of what
    // the row's logprobs err by, which is what all bounds at temperature 1 have in common.
    EXPECT_NEAR(sum, 1, 1.001 * ScaledRow(row, 1, logit_max).common) << at;
    EXPECT_EQ(raw[at], row[ids[at]]) << at;
  }
}

TEST_F(LogprobsTest, GreedyAnswersHaveScaledEqualToRaw) {
  v1::GenerateRequest request = Story(3, 50);
  request.mutable_sampling()->set_temperature(0);
  const v1::Sample sample = Generate(request);
  EXPECT_EQ(sample.logprobs().scaled(), sample.logprobs().raw());
  EXPECT_EQ(sample.logprobs().raw().size(), 200u);
}

TEST_F(LogprobsTest, ThereIsOneForEachTokenAfterAStop) {
  v1::GenerateRequest request = WithAllLogprobs(Story(4, 400));
  request.set_prompt_text("12+34*2=");
  request.mutable_stop()->set_ignore_eos(false);
  const v1::Sample sample = Generate(request);
  EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_STOP);
  ExpectEqualLengths(sample);
}

TEST_F(LogprobsTest, ThereIsOneForEachTokenAfterAnAbort) {
  v1::GenerateRequest request = WithAllLogprobs(Story(5, 4000));
  request.set_request_id("aborted-in-the-middle");
  const double before = cluster_->GatewayMetric("lockstep_gateway_generated_tokens_total");
  GenerateCalls calls(stub());
  calls.Start(request);
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] {
    return cluster_->GatewayMetric("lockstep_gateway_generated_tokens_total") > before + 20;
  }));
  v1::AbortRequest abort;
  abort.add_request_ids("aborted-in-the-middle");
  ASSERT_TRUE(CallNow(stub(), &RolloutStub::Abort, abort).ok());
  const auto answer = calls.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_GE(answer->samples(0).token_ids().size(), 4 * 20u);
  ExpectEqualLengths(answer->samples(0));
}

TEST_F(LogprobsTest, NoNewTokensStillScoreThePrompt) {
  v1::GenerateRequest request = WithAllLogprobs(Story(6, 0));
  request.mutable_logprobs()->set_prompt_from(1);
  const v1::Sample none = Generate(request);
  EXPECT_EQ(none.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(none.token_ids().empty());
  ExpectEqualLengths(none);
  EXPECT_EQ(none.prompt_logprobs().raw().size(), 4 * (none.usage().prompt_tokens() - 1));

  request.mutable_stop()->set_max_new_tokens(5);
  const v1::Sample some = Generate(request);
  EXPECT_EQ(some.prompt_logprobs().raw(), none.prompt_logprobs().raw());
  ExpectEqualLengths(some);
  request.mutable_logprobs()->clear_prompt_from();
  request.mutable_stop()->set_max_new_tokens(0);
  const v1::Sample nothing = Generate(request);
  EXPECT_EQ(nothing.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(nothing.prompt_logprobs().raw().empty());
  ExpectEqualLengths(nothing);
}

TEST_F(LogprobsTest, TokensWithoutLogprobsComeWhenNoneAreWanted) {
  v1::GenerateRequest request = Story(7, 30);
  const v1::Sample with = Generate(request);
  request.mutable_logprobs()->set_generated(false);
  const v1::Sample without = Generate(request);
  EXPECT_EQ(without.token_ids(), with.token_ids());
  EXPECT_TRUE(without.logprobs().raw().empty());
  EXPECT_TRUE(without.logprobs().scaled().empty());
}

TEST_F(LogprobsTest, DetailsComeAlsoWithoutTheTokensOwnLogprobs) {
  v1::GenerateRequest request = Story(7, 30);
  request.mutable_logprobs()->set_top_count(3);
  request.mutable_logprobs()->add_chosen_ids(5);
  request.mutable_logprobs()->set_entropy(true);
  const v1::Sample with = Generate(request);
  request.mutable_logprobs()->set_generated(false);
  const v1::Sample without = Generate(request);
  EXPECT_EQ(without.finish_reason(), with.finish_reason());
  EXPECT_EQ(without.token_ids(), with.token_ids());
  v1::LogprobArrays details = with.logprobs();
  details.clear_raw();
  details.clear_scaled();
  EXPECT_FALSE(details.top_ids().empty());
  EXPECT_EQ(without.logprobs().SerializeAsString(), details.SerializeAsString());
}

}  // namespace
}  // namespace lockstep
