// What runs beside a request never reaches its bits: order of arrival, neighbours of every kind,
// batches of every size, thousands of positions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/client/arrays.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/handmade_tokenizer.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateQuietly;
using testing::RolloutStub;
using testing::SharedClusterTest;

v1::GenerateRequest Story(uint64_t seed, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text("Tell me a story:");
  request.set_seed(seed);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

v1::GenerateRequest WithPromptOf(int64_t length, int64_t tokens) {
  v1::GenerateRequest request = Story(5, tokens);
  for (int64_t i = 0; i < length; ++i) request.mutable_prompt_ids()->add_ids(16 + i * 7 % 40);
  return request;
}

// Steps of up to 320 sequences and 4096 tokens, and a lease that one of them does not outlast.
ClusterHarness::Options Options(int workers) {
  return {.model = "deploy/demo-model",
          .workers = workers,
          .kv_bytes = int64_t{96} << 20,
          .sequences_max = 320,
          .chunk_tokens = 4096,
          .lease_seconds = 5};
}

class DeterminismTest : public SharedClusterTest<DeterminismTest> {
 public:
  static ClusterHarness::Options ClusterOptions() {
    return {.model = "deploy/demo-model",
            .kv_bytes = int64_t{96} << 20,
            .sequences_max = 320,
            .chunk_tokens = 4096,
            .lease_seconds = 5};
  }

 protected:
  // The most sequences that one step of any worker held so far.
  static double LargestBatch() {
    constexpr char kName[] = "lockstep_worker_batch_sequences_max";
    return std::max(cluster_->WorkerMetric(0, kName), cluster_->WorkerMetric(1, kName));
  }

  static void ExpectEqualBits(const std::vector<absl::StatusOr<v1::GenerateResponse>>& actual,
                              const std::vector<absl::StatusOr<v1::GenerateResponse>>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_TRUE(actual[i].ok()) << i << ": " << actual[i].status();
      ASSERT_TRUE(expected[i].ok()) << i << ": " << expected[i].status();
      EXPECT_EQ(Bits(*actual[i]), Bits(*expected[i])) << i;
    }
  }
};

TEST_F(DeterminismTest, RoundsInRandomOrderOfArrivalGiveTheSameBits) {
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 100; ++i) {
    v1::GenerateRequest request = Story(100 + i, 24);
    request.set_prompt_text(i % 3 == 0 ? "Say it with emoji:" : absl::StrCat(i, "+34*2="));
    request.mutable_sampling()->set_temperature(0.95f);
    request.mutable_sampling()->set_top_p(0.95f);
    requests.push_back(request);
  }
  const auto expected = GenerateQuietly(stub(), requests);
  for (const uint32_t round : {1, 2}) {
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(round));
    std::vector<v1::GenerateRequest> shuffled;
    for (const size_t i : order) shuffled.push_back(requests[i]);
    const auto answers = GenerateAll(stub(), shuffled);
    std::vector<absl::StatusOr<v1::GenerateResponse>> sorted(requests.size());
    for (size_t i = 0; i < order.size(); ++i) sorted[order[i]] = answers[i];
    ExpectEqualBits(sorted, expected);
  }
  EXPECT_GE(LargestBatch(), 8);
}

TEST_F(DeterminismTest, NeighboursOfEveryKindMoveNeitherSampledNorGreedyBits) {
  const std::vector<std::function<void(v1::GenerateRequest*)>> kinds = {
      [](auto* r) { r->mutable_sampling()->set_temperature(0); },
      [](auto* r) { r->mutable_sampling()->set_top_p(0.9f); },
      [](auto* r) { r->mutable_sampling()->set_top_k(5); },
      [](auto* r) { r->mutable_sampling()->set_min_p(0.1f); },
      [](auto* r) { r->mutable_sampling()->set_temperature(3); },
      [](auto* r) { r->mutable_sampling()->set_repetition_penalty(1.5f); },
      [](auto* r) { r->mutable_sampling()->add_logit_bias()->set_bias(5); },
      [](auto* r) { r->mutable_logprobs()->set_top_count(64); },
      [](auto* r) { r->mutable_logprobs()->set_prompt_from(1); }};
  std::vector<v1::GenerateRequest> probes = {Story(1, 40), Story(2, 40)};
  probes[1].mutable_sampling()->set_temperature(0);
  const auto expected = GenerateQuietly(stub(), probes);
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    std::vector<v1::GenerateRequest> all = probes;
    for (uint64_t i = 0; i < 12; ++i) {
      all.push_back(Story(10 + i, 40));
      kinds[kind](&all.back());
    }
    auto answers = GenerateAll(stub(), all);
    for (const auto& answer : answers) ASSERT_TRUE(answer.ok()) << kind << answer.status();
    answers.resize(probes.size());
    SCOPED_TRACE(kind);
    ExpectEqualBits(answers, expected);
  }
}

TEST_F(DeterminismTest, PrefillsThatFillAStepAroundASplitGiveTheSameBits) {
  for (const int64_t total : {255, 256, 257}) {
    std::vector<v1::GenerateRequest> requests;
    for (const int64_t first : {total, total - 1, total / 2, int64_t{64}}) {
      requests.push_back(WithPromptOf(first, 4));
      if (first < total) requests.push_back(WithPromptOf(total - first, 4));
    }
    for (v1::GenerateRequest& request : requests) {
      request.set_disable_prefix_cache(true);
      request.mutable_logprobs()->set_prompt_from(1);
    }
    SCOPED_TRACE(total);
    ExpectEqualBits(GenerateAll(stub(), requests), GenerateQuietly(stub(), requests));
  }
}

TEST_F(DeterminismTest, FourThousandTokensKeepTheirBitsInCompanyAndWhenScored) {
  const v1::GenerateRequest request = Story(3, 4000);
  const auto alone = GenerateQuietly(stub(), {request});
  std::vector<v1::GenerateRequest> company = {request};
  for (int i = 0; i < 40; ++i) company.push_back(Story(50 + i, 10 + 9 * i));
  auto answers = GenerateAll(stub(), company);
  answers.resize(1);
  ExpectEqualBits(answers, alone);

  const v1::Sample& sample = answers[0]->samples(0);
  v1::ScoreRequest score;
  *score.mutable_ids() = client::ToIdField(client::ReadIds(answers[0]->prompt_ids()));
  score.set_from(score.ids_size());
  const auto ids = client::ToIdField(client::ReadIds(sample.token_ids()));
  ASSERT_EQ(ids.size(), 4000);
  score.mutable_ids()->MergeFrom(ids);
  const auto scored = CallNow(stub(), &RolloutStub::Score, score);
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_EQ(scored->logprobs().raw(), sample.logprobs().raw());
  EXPECT_EQ(scored->logprobs().scaled(), sample.logprobs().scaled());
}

// Groups of these sizes; every sample must be what it is alone.
void ExpectGroupsEqualToAlone(RolloutStub* stub, const std::vector<int>& sizes, int64_t tokens) {
  std::vector<v1::GenerateRequest> alone(sizes.back(), Story(9, tokens));
  for (size_t i = 0; i < alone.size(); ++i) alone[i].set_first_sample_index(i);
  const auto expected = GenerateQuietly(stub, alone);
  for (const int size : sizes) {
    v1::GenerateRequest group = Story(9, tokens);
    group.set_n(size);
    const auto answer = GenerateAll(stub, {group})[0];
    ASSERT_TRUE(answer.ok()) << answer.status();
    for (int i = 0; i < size; ++i) {
      ASSERT_TRUE(expected[i].ok()) << expected[i].status();
      ASSERT_EQ(Bits(answer->samples(i)), Bits(*expected[i])) << i << " of " << size;
    }
  }
}

TEST(DeterminismOfBatchesTest, EverySizeGivesTheSameBits) {
  ClusterHarness cluster(Options(1));
  const absl::Status status = cluster.Start();
  ASSERT_TRUE(status.ok()) << status;
  std::vector<int> small(65);
  std::iota(small.begin(), small.end(), 1);
  ExpectGroupsEqualToAlone(cluster.stub(), small, 5);
  ExpectGroupsEqualToAlone(cluster.stub(), {127, 128, 129, 255, 256, 257}, 8);
  EXPECT_EQ(cluster.WorkerMetric(0, "lockstep_worker_batch_sequences_max"), 257);
}

// Three ways to ask for the most probable id.
std::vector<v1::GenerateRequest> GreedyInEveryWay(const v1::GenerateRequest& request) {
  std::vector<v1::GenerateRequest> requests(3, request);
  requests[0].mutable_sampling()->set_temperature(0);
  requests[1].mutable_sampling()->set_top_k(1);
  requests[2].mutable_sampling()->set_top_p(1e-30f);
  return requests;
}

TEST_F(DeterminismTest, GreedyTopOneAndTinyTopPGiveTheSameIds) {
  const auto answers = GenerateAll(stub(), GreedyInEveryWay(Story(4, 100)));
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->samples(0).token_ids(), answers[0]->samples(0).token_ids());
  }
}

TEST_F(DeterminismTest, SamplesOfASeedAreDistinctAndEachReplaysAlone) {
  v1::GenerateRequest request = Story(6, 60);
  request.set_n(8);
  const auto group = GenerateAll(stub(), {request})[0];
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<std::string> ids;
  for (const v1::Sample& sample : group->samples()) {
    ids.push_back(sample.token_ids());
    v1::GenerateRequest alone = Story(0, 60);
    alone.set_exact_seed(sample.sub_seed());
    alone.set_first_sample_index(sample.index());
    const auto replay = GenerateAll(stub(), {alone})[0];
    ASSERT_TRUE(replay.ok()) << replay.status();
    EXPECT_EQ(Bits(replay->samples(0)), Bits(sample)) << sample.index();
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

// A model in which every id has a twin with the same row of lm_head, so that all logits come in
// pairs that are equal in every bit.
void WriteModelOfTwins(const testing::TemporaryDirectory& directory) {
  const testing::TinyModel model = {.tied = true, .store_lm_head = false};
  testing::WriteCheckpoint(directory.path(), model);
  auto tensors = testing::MakeTensors(model);
  for (testing::NamedTensor& tensor : tensors) {
    if (tensor.name != "model.embed_tokens.weight") continue;
    for (int id = 0; id < model.vocabulary; id += 2) {
      const auto row = tensor.values.begin() + id * model.hidden;
      std::copy(row, row + model.hidden, row + model.hidden);
    }
  }
  testing::WriteBytes(directory.File("model.safetensors"),
                      testing::SafetensorsBytes(tensors, model.stored));
  testing::WriteBytes(directory.File("tokenizer.json"), text::HandmadeTokenizerJson({}).dump());
}

TEST(DeterminismOfTiesTest, GreedyTopOneAndTinyTopPTakeTheLowerOfTwins) {
  const testing::TemporaryDirectory directory;
  WriteModelOfTwins(directory);
  ClusterHarness cluster({.model = directory.path(), .workers = 1});
  const absl::Status status = cluster.Start();
  ASSERT_TRUE(status.ok()) << status;
  v1::GenerateRequest request;
  for (const int64_t id : {70, 71, 72}) request.mutable_prompt_ids()->add_ids(id);
  request.set_seed(4);
  request.mutable_stop()->set_max_new_tokens(200);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_logprobs()->set_top_count(2);
  const auto answers = GenerateAll(cluster.stub(), GreedyInEveryWay(request));
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    const v1::Sample& sample = answer->samples(0);
    EXPECT_EQ(sample.token_ids(), answers[0]->samples(0).token_ids());
    for (const uint32_t id : client::ReadIds(sample.token_ids())) EXPECT_EQ(id % 2, 0u);
    const auto top = client::ReadFloats(sample.logprobs().top_logprobs());
    for (size_t i = 0; i < top.size(); i += 2) EXPECT_EQ(top[i], top[i + 1]) << "no tie";
  }
}

}  // namespace
}  // namespace lockstep
