#include "services/worker/kv/prefix_index.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kBlockTokens = 4;

std::shared_ptr<const PrefixScope> Scope(std::string cache_namespace = "", int64_t version = 1) {
  return std::make_shared<const PrefixScope>(
      PrefixScope{std::move(cache_namespace), base::WeightVersion(version)});
}

std::vector<int32_t> Ids(int32_t first, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

// What a sequence does: match, compute the rest, publish whole blocks. Returns its blocks.
std::vector<int32_t> Compute(PrefixIndex* index, const std::shared_ptr<const PrefixScope>& scope,
                             const std::vector<int32_t>& ids) {
  std::vector<int32_t> blocks = index->Match(*scope, ids, static_cast<int64_t>(ids.size()) - 1);
  const size_t known = blocks.size();
  while (blocks.size() * kBlockTokens < ids.size()) blocks.push_back(*index->Allocate());
  for (size_t b = known; (b + 1) * kBlockTokens <= ids.size(); ++b) {
    blocks[b] = index->Publish(scope, b == 0 ? -1 : blocks[b - 1],
                               std::span(ids).subspan(b * kBlockTokens, kBlockTokens), blocks[b]);
  }
  return blocks;
}

TEST(PrefixIndexTest, FindsTheLongestWholeBlockPrefix) {
  PrefixIndex index({.block_count = 8, .block_tokens = kBlockTokens});
  const auto blocks = Compute(&index, Scope(), Ids(0, 11));
  index.Release(blocks);
  for (const auto& [tokens, expected] :
       std::map<int64_t, size_t>{{0, 0}, {3, 0}, {4, 1}, {7, 1}, {8, 2}, {11, 2}, {99, 2}}) {
    const auto match = index.Match(*Scope(), Ids(0, 11), tokens);
    EXPECT_THAT(match, SizeIs(expected)) << tokens;
    index.Release(match);
  }
  EXPECT_EQ(index.available_count(), 8);
}

TEST(PrefixIndexTest, StopsAtTheFirstDifferentBlock) {
  PrefixIndex index({.block_count = 8, .block_tokens = kBlockTokens});
  const auto blocks = Compute(&index, Scope(), Ids(0, 12));
  std::vector<int32_t> other = Ids(0, 12);
  other[5] = 99;
  EXPECT_THAT(index.Match(*Scope(), other, 12), ElementsAre(blocks[0]));
  // Equal ids behind another parent are another block.
  EXPECT_THAT(index.Match(*Scope(), Ids(4, 8), 8), IsEmpty());
}

TEST(PrefixIndexTest, NamespacesAndVersionsNeverShare) {
  PrefixIndex index({.block_count = 8, .block_tokens = kBlockTokens});
  Compute(&index, Scope("a", 1), Ids(0, 8));
  EXPECT_THAT(index.Match(*Scope("a", 1), Ids(0, 8), 8), SizeIs(2));
  EXPECT_THAT(index.Match(*Scope("b", 1), Ids(0, 8), 8), IsEmpty());
  EXPECT_THAT(index.Match(*Scope("a", 2), Ids(0, 8), 8), IsEmpty());
}

TEST(PrefixIndexTest, CollidingHashesNeverGiveForeignBlocks) {
  const auto collide = [](const base::Digest128&, std::span<const int32_t>) {
    return base::Digest128{.high = 1, .low = 1};
  };
  PrefixIndex index({.block_count = 16, .block_tokens = kBlockTokens, .hash = collide});
  const auto first = Compute(&index, Scope(), Ids(0, 8));
  EXPECT_THAT(index.Match(*Scope(), Ids(0, 8), 8), ElementsAre(first[0]));
  // Other ids, another scope, and the same ids behind another parent: all collide, none is given.
  EXPECT_THAT(index.Match(*Scope(), Ids(50, 8), 8), IsEmpty());
  EXPECT_THAT(index.Match(*Scope("b"), Ids(0, 8), 8), IsEmpty());
  std::vector<int32_t> repeated = Ids(0, 4);
  repeated.insert(repeated.end(), repeated.begin(), repeated.end());
  EXPECT_THAT(index.Match(*Scope(), repeated, 8), ElementsAre(first[0]));
  const auto second = Compute(&index, Scope(), Ids(50, 8));
  EXPECT_EQ(index.indexed_count(), 1);
  index.Release(second);
  EXPECT_EQ(index.Match(*Scope(), Ids(50, 8), 8), std::vector<int32_t>());
}

TEST(PrefixIndexTest, ConcurrentInsertsOfOnePrefixShareItsBlocks) {
  PrefixIndex index({.block_count = 8, .block_tokens = kBlockTokens});
  const auto scope = Scope();
  const std::vector<int32_t> ids = Ids(0, 8);
  std::vector<int32_t> a = {*index.Allocate(), *index.Allocate()};
  std::vector<int32_t> b = {*index.Allocate(), *index.Allocate()};
  for (std::vector<int32_t>* blocks : {&a, &b}) {
    for (int i = 0; i < 2; ++i) {
      (*blocks)[i] =
          index.Publish(scope, i == 0 ? -1 : (*blocks)[0],
                        std::span(ids).subspan(i * kBlockTokens, kBlockTokens), (*blocks)[i]);
    }
  }
  EXPECT_EQ(a, b);
  EXPECT_EQ(index.available_count(), 6);
  index.Release(a);
  EXPECT_EQ(index.available_count(), 6);
  index.Release(b);
  EXPECT_EQ(index.available_count(), 8);
  EXPECT_EQ(index.indexed_count(), 2);
}

TEST(PrefixIndexTest, EvictsTheLeastRecentlyUsedLeafFirst) {
  PrefixIndex index({.block_count = 4, .block_tokens = kBlockTokens});
  const auto scope = Scope();
  const auto old_chain = Compute(&index, scope, Ids(0, 8));
  const auto new_chain = Compute(&index, scope, Ids(100, 8));
  index.Release(old_chain);
  index.Release(new_chain);
  EXPECT_EQ(index.available_count(), 4);
  EXPECT_EQ(index.Allocate(), old_chain[1]);
  EXPECT_EQ(index.Allocate(), old_chain[0]);
  EXPECT_THAT(index.Match(*scope, Ids(100, 8), 8), ElementsAre(new_chain[0], new_chain[1]));
  EXPECT_EQ(index.Allocate(), std::nullopt) << "blocks in use are not evicted";
  EXPECT_EQ(index.evictions(), 2);
}

TEST(PrefixIndexTest, AMatchMakesBlocksRecentlyUsed) {
  PrefixIndex index({.block_count = 2, .block_tokens = kBlockTokens});
  const auto scope = Scope();
  const auto a = Compute(&index, scope, Ids(0, 4));
  const auto b = Compute(&index, scope, Ids(100, 4));
  index.Release(a);
  index.Release(b);
  index.Release(index.Match(*scope, Ids(0, 4), 4));
  EXPECT_EQ(index.Allocate(), b[0]);
}

TEST(PrefixIndexTest, FlushForgetsOneNamespaceAndFreesWhatNobodyUses) {
  PrefixIndex index({.block_count = 8, .block_tokens = kBlockTokens});
  const auto used = Compute(&index, Scope("a"), Ids(0, 8));
  const auto unused = Compute(&index, Scope("a"), Ids(100, 4));
  index.Release(unused);
  index.Release(Compute(&index, Scope("b"), Ids(0, 8)));
  EXPECT_EQ(index.Flush("a"), 1);
  EXPECT_THAT(index.Match(*Scope("a"), Ids(0, 8), 8), IsEmpty());
  const auto other = index.Match(*Scope("b"), Ids(0, 8), 8);
  EXPECT_THAT(other, SizeIs(2));
  index.Release(other);
  index.Release(used);
  EXPECT_EQ(index.available_count(), 8);
  EXPECT_EQ(index.Flush(std::nullopt), 2);
  EXPECT_EQ(index.indexed_count(), 0);
  EXPECT_EQ(index.available_count(), 8);
}

TEST(PrefixIndexTest, AChainThatWasFlushedInUseStaysPrivate) {
  PrefixIndex index({.block_count = 8, .block_tokens = kBlockTokens});
  const auto scope = Scope();
  const std::vector<int32_t> ids = Ids(0, 8);
  std::vector<int32_t> blocks = Compute(&index, scope, Ids(0, 4));
  index.Flush(std::nullopt);
  blocks.push_back(*index.Allocate());
  EXPECT_EQ(index.Publish(scope, blocks[0], std::span(ids).subspan(4, 4), blocks[1]), blocks[1]);
  EXPECT_EQ(index.indexed_count(), 0);
  index.Release(blocks);
  EXPECT_EQ(index.available_count(), 8);
}

// Random sequences on a small pool against what must hold at any time: a match has the right
// tokens, nothing leaks, and every block without a user can be allocated.
TEST(PrefixIndexTest, RandomUseKeepsContentsAndCountsRight) {
  PrefixIndex index({.block_count = 24, .block_tokens = kBlockTokens});
  const auto scope = Scope();
  std::map<int32_t, std::vector<int32_t>> content;  // Prefix that each block was computed for.
  std::vector<std::vector<int32_t>> users;
  uint64_t state = 1;
  const auto random = [&state](uint64_t range) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % range;
  };
  for (int round = 0; round < 20000; ++round) {
    if (!users.empty() && (users.size() > 4 || random(2) == 0)) {
      const size_t victim = random(users.size());
      index.Release(users[victim]);
      users.erase(users.begin() + static_cast<int64_t>(victim));
    } else {
      std::vector<int32_t> ids;
      for (uint64_t i = 0, count = 1 + random(16); i < count; ++i) {
        ids.push_back(static_cast<int32_t>(random(2)));
      }
      std::vector<int32_t> blocks = index.Match(*scope, ids, static_cast<int64_t>(ids.size()) - 1);
      for (size_t b = 0; b < blocks.size(); ++b) {
        ASSERT_EQ(content[blocks[b]],
                  std::vector<int32_t>(ids.begin(), ids.begin() + (b + 1) * kBlockTokens));
      }
      const size_t known = blocks.size();
      while (blocks.size() * kBlockTokens < ids.size()) blocks.push_back(*index.Allocate());
      for (size_t b = known; (b + 1) * kBlockTokens <= ids.size(); ++b) {
        content[blocks[b]] = {ids.begin(), ids.begin() + (b + 1) * kBlockTokens};
        blocks[b] =
            index.Publish(scope, b == 0 ? -1 : blocks[b - 1],
                          std::span(ids).subspan(b * kBlockTokens, kBlockTokens), blocks[b]);
      }
      users.push_back(blocks);
    }
    if (random(500) == 0) index.Flush(std::nullopt);
    std::vector<int32_t> used;
    for (const auto& blocks : users) used.insert(used.end(), blocks.begin(), blocks.end());
    std::ranges::sort(used);
    used.erase(std::unique(used.begin(), used.end()), used.end());
    ASSERT_EQ(index.available_count(), 24 - static_cast<int64_t>(used.size()));
  }
  for (const auto& blocks : users) index.Release(blocks);
  EXPECT_EQ(index.available_count(), 24);
  EXPECT_GT(index.evictions(), 100);
  for (int i = 0; i < 24; ++i) EXPECT_TRUE(index.Allocate().has_value());
}

}  // namespace
}  // namespace lockstep::worker
