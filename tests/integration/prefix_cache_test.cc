// A prefix that was computed before saves work and changes nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "services/client/arrays.h"
#include "tests/support/cluster_harness.h"
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

constexpr int64_t kSplit = 256;

// `shared` ids that all prompts begin with, then `own` ids of this prompt's own.
std::vector<int64_t> PromptIds(int64_t shared, int64_t own, int64_t variation) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < shared; ++i) ids.push_back(16 + i * 7 % 97);
  for (int64_t i = 0; i < own; ++i) ids.push_back(120 + (i * 11 + variation * 29) % 200);
  return ids;
}

v1::GenerateRequest Request(const std::vector<int64_t>& ids) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.set_seed(31);
  request.mutable_stop()->set_max_new_tokens(6);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

class PrefixCacheTest : public SharedClusterTest<PrefixCacheTest> {
 public:
  static ClusterHarness::Options ClusterOptions() {
    // One worker, which keeps its lease on a busy machine: a sequence that moved would find what it
    // has computed itself. So a hit depends on nothing but the cache.
    return {.model = "deploy/demo-model", .workers = 1, .lease_seconds = 60};
  }

 protected:
  static int64_t BlockTokens() {
    return CallNow(stub(), &RolloutStub::GetServerInfo, {})->fingerprint().kv_block_tokens();
  }
  static int64_t Flush(const v1::FlushCacheRequest& request = {}) {
    const auto response = CallNow(stub(), &RolloutStub::FlushCache, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->freed_blocks() : -1;
  }
  // Runs one request; tells how many tokens of its prompt were cached.
  static int64_t CachedTokens(const v1::GenerateRequest& request, std::string* bits = nullptr) {
    const auto answer = GenerateAll(stub(), {request})[0];
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return -1;
    if (bits != nullptr) *bits = Bits(*answer);
    return answer->samples(0).usage().cached_tokens();
  }
};

TEST_F(PrefixCacheTest, ColdWarmAndCutAroundBlockAndSplitGiveTheSameBits) {
  const int64_t block = BlockTokens();
  for (const int64_t shared :
       {block - 1, block, block + 1, kSplit - 1, kSplit, kSplit + 1, 2 * kSplit + block}) {
    const v1::GenerateRequest request = Request(PromptIds(shared, 70, 1));
    const auto quiet = GenerateQuietly(stub(), {request})[0];
    ASSERT_TRUE(quiet.ok()) << quiet.status();
    Flush();
    std::string cold, cut, warm;
    EXPECT_EQ(CachedTokens(request, &cold), 0);
    Flush();
    // Another prompt leaves the shared part, and the first blocks of its own.
    CachedTokens(Request(PromptIds(shared, 70, 2)));
    EXPECT_EQ(CachedTokens(request, &cut), shared / block * block) << shared;
    EXPECT_EQ(CachedTokens(request, &warm), (shared + 70 - 1) / block * block) << shared;
    EXPECT_EQ(cold, Bits(*quiet)) << shared;
    EXPECT_EQ(cut, Bits(*quiet)) << shared;
    EXPECT_EQ(warm, Bits(*quiet)) << shared;
  }
}

TEST_F(PrefixCacheTest, PromptsScoredInEveryOrderGiveTheSameLogprobs) {
  const int64_t block = BlockTokens();
  std::vector<v1::ScoreRequest> requests;
  for (const int64_t shared : {block, 2 * block + 1, kSplit, kSplit + block}) {
    v1::ScoreRequest request;
    const auto ids = PromptIds(shared, 40, shared);
    request.mutable_ids()->Add(ids.begin(), ids.end());
    requests.push_back(request);
  }
  std::vector<std::string> expected;
  for (v1::ScoreRequest request : requests) {
    request.set_disable_prefix_cache(true);
    expected.push_back(CallNow(stub(), &RolloutStub::Score, request)->logprobs().raw());
  }
  // Everything is asked for from the middle on, so that what lies before can be a hit.
  for (v1::ScoreRequest& request : requests) request.set_from(request.ids_size() - 30);
  std::vector<size_t> order = {0, 1, 2, 3};
  int64_t cached_tokens = 0;
  do {
    Flush();
    for (const size_t i : order) {
      const auto scored = CallNow(stub(), &RolloutStub::Score, requests[i]);
      ASSERT_TRUE(scored.ok()) << scored.status();
      cached_tokens += scored->usage().cached_tokens();
      EXPECT_EQ(scored->logprobs().raw(), expected[i].substr(expected[i].size() - 4 * 30)) << i;
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_GT(cached_tokens, 0);
}

TEST_F(PrefixCacheTest, ScoreFromAnyOffsetWithAWarmCacheHasEveryPosition) {
  const int64_t block = BlockTokens();
  const auto ids = PromptIds(2 * kSplit, 100, 3);
  v1::ScoreRequest request;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  request.set_top_count(2);
  request.set_entropy(true);
  request.set_disable_prefix_cache(true);
  const auto whole = CallNow(stub(), &RolloutStub::Score, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(whole->logprobs().raw().size(), 4 * (ids.size() - 1));
  request.set_disable_prefix_cache(false);
  Flush();
  ASSERT_TRUE(CallNow(stub(), &RolloutStub::Score, request).ok());
  for (const int64_t from : {int64_t{1}, int64_t{2}, block - 1, block, block + 1, kSplit,
                             kSplit + 1, static_cast<int64_t>(ids.size()) - 1}) {
    request.set_from(from);
    const auto scored = CallNow(stub(), &RolloutStub::Score, request);
    ASSERT_TRUE(scored.ok()) << scored.status();
    const size_t skip = static_cast<size_t>(from - 1);
    EXPECT_EQ(scored->logprobs().raw(), whole->logprobs().raw().substr(4 * skip)) << from;
    EXPECT_EQ(scored->logprobs().entropy(), whole->logprobs().entropy().substr(4 * skip)) << from;
    EXPECT_EQ(scored->logprobs().top_ids(), whole->logprobs().top_ids().substr(8 * skip)) << from;
    // The row of the first position asked for has to be computed, so a hit ends before it.
    EXPECT_EQ(scored->usage().cached_tokens(), (from - 1) / block * block) << from;
  }
}

TEST_F(PrefixCacheTest, AnswerAppendedVerbatimIsAHitOverThePreviousLength) {
  const int64_t block = BlockTokens();
  Flush();
  std::vector<int64_t> ids = PromptIds(50, 3, 4);
  for (int turn = 0; turn < 5; ++turn) {
    v1::GenerateRequest request = Request(ids);
    request.mutable_stop()->set_max_new_tokens(45 + turn);
    request.set_routing_key("conversation");
    const auto answer = GenerateAll(stub(), {request})[0];
    ASSERT_TRUE(answer.ok()) << answer.status();
    // The key and value of the last token of an answer were never needed.
    const int64_t known = turn == 0 ? 0 : static_cast<int64_t>(ids.size()) - 4 - 1;
    EXPECT_EQ(answer->samples(0).usage().cached_tokens(), known / block * block) << turn;
    EXPECT_EQ(Bits(*answer), Bits(*GenerateQuietly(stub(), {request})[0])) << turn;
    for (const uint32_t id : client::ReadIds(answer->samples(0).token_ids())) ids.push_back(id);
    for (const int64_t id : {16, 17, 18, 19}) ids.push_back(id);  // What the user says next.
  }
}

TEST_F(PrefixCacheTest, FlushForgetsOneNamespaceOrAll) {
  const int64_t block = BlockTokens();
  v1::GenerateRequest mine = Request(PromptIds(2 * block, 5, 5));
  v1::GenerateRequest theirs = mine;
  mine.set_cache_namespace("mine");
  theirs.set_cache_namespace("theirs");
  Flush();
  EXPECT_EQ(CachedTokens(mine), 0);
  EXPECT_EQ(CachedTokens(theirs), 0);  // Namespaces share nothing.
  EXPECT_EQ(CachedTokens(mine), 2 * block);
  v1::FlushCacheRequest only_mine;
  only_mine.set_cache_namespace("mine");
  EXPECT_GE(Flush(only_mine), 2);
  EXPECT_EQ(CachedTokens(mine), 0);
  EXPECT_EQ(CachedTokens(theirs), 2 * block);
  EXPECT_GE(Flush(), 4);
  EXPECT_EQ(CachedTokens(theirs), 0);
  EXPECT_EQ(Flush(only_mine), 0);
}

}  // namespace
}  // namespace lockstep
