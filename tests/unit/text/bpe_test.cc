#include "services/text/bpe.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::text {
namespace {

using testing::ElementsAre;

// Byte b has id b; each merge makes the next id.
TokenizerSpec Spec(const std::vector<std::pair<std::string, std::string>>& merges) {
  TokenizerSpec spec;
  std::map<std::string, int32_t> ids;
  const auto add = [&](const std::string& bytes) {
    const auto [it, is_new] = ids.emplace(bytes, static_cast<int32_t>(ids.size()));
    if (is_new) spec.vocabulary.push_back({.bytes = bytes, .id = it->second});
    return it->second;
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const auto& [left, right] : merges) {
    const int32_t result = add(left + right);
    spec.merges.push_back({ids.at(left), ids.at(right), result});
  }
  return spec;
}

std::vector<int32_t> Encode(const TokenizerSpec& spec, const std::string& word) {
  BpeScratch scratch;
  std::vector<int32_t> ids;
  Bpe(spec).Encode(word, &scratch, &ids);
  return ids;
}

// The definition: merge the leftmost pair of lowest rank until there is none.
std::vector<int32_t> EncodeByDefinition(const TokenizerSpec& spec, const std::string& word) {
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(static_cast<uint8_t>(c));
  for (;;) {
    size_t best_rank = spec.merges.size(), best_at = 0;
    for (size_t at = 0; at + 1 < ids.size(); ++at) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (spec.merges[rank].left == ids[at] && spec.merges[rank].right == ids[at + 1]) {
          best_rank = rank, best_at = at;
        }
      }
    }
    if (best_rank == spec.merges.size()) return ids;
    ids[best_at] = spec.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_at) + 1);
  }
}

TEST(BpeTest, LowerRanksGoFirst) {
  EXPECT_THAT(Encode(Spec({{"b", "c"}, {"a", "b"}}), "abc"), ElementsAre('a', 256));
  EXPECT_THAT(Encode(Spec({{"a", "b"}, {"b", "c"}}), "abc"), ElementsAre(256, 'c'));
}

TEST(BpeTest, EqualRanksGoFromLeftToRight) {
  EXPECT_THAT(Encode(Spec({{"a", "a"}}), "aaaaa"), ElementsAre(256, 256, 'a'));
}

TEST(BpeTest, AWordOfTheVocabularyThatMergesCannotReachIsNotUsed) {
  TokenizerSpec spec = Spec({{"a", "b"}, {"ab", "c"}, {"b", "c"}});
  std::swap(spec.merges[0], spec.merges[2]);
  EXPECT_THAT(Encode(spec, "abc"), ElementsAre('a', 258));
  spec.ignores_merges = true;
  EXPECT_THAT(Encode(spec, "abc"), ElementsAre(257));
}

TEST(BpeTest, OfTwoEqualRulesTheLaterRankCounts) {
  TokenizerSpec spec = Spec({{"a", "b"}, {"b", "c"}});
  spec.merges.push_back(spec.merges[0]);
  EXPECT_THAT(Encode(spec, "abc"), ElementsAre('a', 257));
}

TEST(BpeTest, EqualsTheDefinitionForRandomMergesAndWords) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::pair<std::string, std::string>> merges;
    std::vector<std::string> parts = {"a", "b", "c"};
    for (int i = 0; i < 20; ++i) {
      const auto pair = std::pair(parts[random() % parts.size()], parts[random() % parts.size()]);
      if (pair.first.size() + pair.second.size() > 8) continue;
      if (std::find(merges.begin(), merges.end(), pair) != merges.end()) continue;
      merges.push_back(pair);
      parts.push_back(pair.first + pair.second);
    }
    // A rank is independent of the order in which tokens came to be.
    TokenizerSpec spec = Spec(merges);
    std::shuffle(spec.merges.begin(), spec.merges.end(), random);
    const Bpe bpe(spec);
    BpeScratch scratch;
    for (int i = 0; i < 20; ++i) {
      std::string word(1 + random() % 30, ' ');
      for (char& c : word) c = static_cast<char>('a' + random() % 3);
      std::vector<int32_t> ids;
      bpe.Encode(word, &scratch, &ids);
      ASSERT_EQ(ids, EncodeByDefinition(spec, word)) << word << " trial " << trial;
    }
  }
}

// A quadratic merge of a million bytes would run into the test's time limit.
TEST(BpeTest, AMillionEqualBytesAreOneWord) {
  EXPECT_EQ(Encode(Spec({{"a", "a"}, {"aa", "aa"}}), std::string(1'000'000, 'a')),
            std::vector<int32_t>(250'000, 257));
}

}  // namespace
}  // namespace lockstep::text
