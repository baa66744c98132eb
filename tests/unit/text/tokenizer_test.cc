#include "services/text/tokenizer.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/text/utf8.h"
#include "tests/support/handmade_tokenizer.h"

namespace lockstep::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const HandmadeTokenizer kSmall = {
    .merges = {{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {" ", "w"}},
    .special_tokens = {"<eos>", "<bos>"},
    .added_tokens = {"<think>"}};
constexpr int32_t kHello = 259, kSpaceW = 260, kEos = 261, kBos = 262, kThink = 263;

std::shared_ptr<const Tokenizer> Make(const json& document) {
  auto tokenizer = Tokenizer::Create(document.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, const std::string& text,
                            EncodeOptions options = {}) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<int32_t>{};
}

std::vector<int32_t> BytesAsIds(const std::string& bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

TEST(TokenizerTest, EncodesByMerges) {
  const auto tokenizer = MakeHandmadeTokenizer(kSmall);
  EXPECT_THAT(Encode(*tokenizer, "hello world"), ElementsAre(kHello, kSpaceW, 'o', 'r', 'l', 'd'));
  EXPECT_THAT(Encode(*tokenizer, ""), ElementsAre());
}

TEST(TokenizerTest, MergesWrittenAsStringsAreTheSame) {
  HandmadeTokenizer as_strings = kSmall;
  as_strings.writes_merges_as_strings = true;
  for (const char* text : {"hello world", "hell", "llhe  wow"}) {
    EXPECT_EQ(Encode(*MakeHandmadeTokenizer(kSmall), text),
              Encode(*MakeHandmadeTokenizer(as_strings), text));
  }
}

TEST(TokenizerTest, RoundTripsEveryCodePoint) {
  const auto tokenizer = MakeHandmadeTokenizer(kSmall);
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c < 0xD800 || c > 0xDFFF) AppendUtf8(c, &text);
  }
  EXPECT_TRUE(*tokenizer->Decode(Encode(*tokenizer, text)) == text);
}

TEST(TokenizerTest, DecodesEveryByte) {
  const auto tokenizer = MakeHandmadeTokenizer(kSmall);
  for (int32_t byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(*tokenizer->Decode(std::vector<int32_t>{byte}),
              std::string(1, static_cast<char>(byte)));
  }
}

TEST(TokenizerTest, BrokenUtf8IsRepairedBeforeItIsEncoded) {
  const auto tokenizer = MakeHandmadeTokenizer(kSmall);
  EXPECT_EQ(Encode(*tokenizer, "a\xE2\x82z\xFF"), BytesAsIds("a\uFFFDz\uFFFD"));
}

TEST(TokenizerTest, AddedTokensAreFoundInText) {
  const auto tokenizer = MakeHandmadeTokenizer(kSmall);
  EXPECT_THAT(Encode(*tokenizer, "hello<eos><think> w<eos"),
              ElementsAre(kHello, kEos, kThink, kSpaceW, '<', 'e', 'o', 's'));
  EXPECT_EQ(tokenizer->FindAddedToken("<think>"), kThink);
  EXPECT_EQ(tokenizer->FindAddedToken("hello"), std::nullopt);
}

TEST(TokenizerTest, OfAddedTokensThatBeginTogetherTheLongestWins) {
  HandmadeTokenizer description;
  description.added_tokens = {"<a", "<a>", "<a>b"};
  const auto tokenizer = MakeHandmadeTokenizer(description);
  EXPECT_THAT(Encode(*tokenizer, "<a><a<a>b<"), ElementsAre(257, 256, 258, '<'));
}

TEST(TokenizerTest, AddedTokensStripWhiteSpaceWhereTheySaySo) {
  json document = HandmadeTokenizerJson(kSmall);
  document["added_tokens"][0]["lstrip"] = true;
  document["added_tokens"][1]["rstrip"] = true;
  const auto tokenizer = Make(document);
  EXPECT_THAT(Encode(*tokenizer, "a \u3000<eos> b"), ElementsAre('a', kEos, ' ', 'b'));
  EXPECT_THAT(Encode(*tokenizer, "a <bos> \n b"), ElementsAre('a', ' ', kBos, 'b'));
  EXPECT_THAT(Encode(*tokenizer, "<bos>  <eos>"), ElementsAre(kBos, kEos));
}

TEST(TokenizerTest, NormalizedAddedTokensAreFoundInNormalizedText) {
  json document = HandmadeTokenizerJson({.added_tokens = {"<e\u0301>", "<\u00E8>"}});
  document["normalizer"] = {{"type", "NFC"}};
  document["added_tokens"][0]["normalized"] = true;
  const auto tokenizer = Make(document);
  EXPECT_THAT(Encode(*tokenizer, "<\u00E9>"), ElementsAre(256));
  EXPECT_THAT(Encode(*tokenizer, "<e\u0301>"), ElementsAre(256));
  EXPECT_THAT(Encode(*tokenizer, "<\u00E8>"), ElementsAre(257));
  EXPECT_EQ(Encode(*tokenizer, "<e\u0300>"), BytesAsIds("<\u00E8>"));
}

TEST(TokenizerTest, TheTemplateIsAddedUnlessTheCallerDeclines) {
  json document = HandmadeTokenizerJson(kSmall);
  const json special = {{"id", "<bos>"}, {"ids", {kBos}}, {"tokens", {"<bos>"}}};
  document["post_processor"] = {{"type", "Sequence"},
                                {"processors",
                                 {{{"type", "ByteLevel"}, {"trim_offsets", false}},
                                  {{"type", "TemplateProcessing"},
                                   {"single",
                                    {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}},
                                     {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                     {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}}}},
                                   {"pair", json::array()},
                                   {"special_tokens", {{"<bos>", special}}}}}}};
  const auto tokenizer = Make(document);
  EXPECT_THAT(Encode(*tokenizer, "hello"), ElementsAre(kBos, kHello, kBos));
  EXPECT_THAT(Encode(*tokenizer, "hello", {.adds_special_tokens = false}), ElementsAre(kHello));
}

TEST(TokenizerTest, PrefixSpaceAndPatternOfByteLevel) {
  json document = HandmadeTokenizerJson(kSmall);
  document["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  const auto tokenizer = Make(document);
  EXPECT_EQ(Encode(*tokenizer, "w1"), (std::vector<int32_t>{kSpaceW, '1'}));
  EXPECT_EQ(Encode(*tokenizer, " w1"), (std::vector<int32_t>{kSpaceW, '1'}));
}

TEST(TokenizerTest, DigitsAreCutOneByOne) {
  json document = HandmadeTokenizerJson({.merges = {{"1", "2"}}});
  document["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Digits"},
                                                   {"individual_digits", false}};
  EXPECT_THAT(Encode(*Make(document), "a12"), ElementsAre('a', 256));
  document["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = true;
  EXPECT_THAT(Encode(*Make(document), "a12"), ElementsAre('a', '1', '2'));
}

TEST(TokenizerTest, DecodeSkipsSpecialTokensOnRequest) {
  const auto tokenizer = MakeHandmadeTokenizer(kSmall);
  const std::vector<int32_t> ids = {kBos, kHello, kThink, kEos};
  EXPECT_EQ(*tokenizer->Decode(ids), "<bos>hello<think><eos>");
  EXPECT_EQ(*tokenizer->Decode(ids, {.skips_special_tokens = true}), "hello<think>");
}

TEST(TokenizerTest, IdsWithoutATokenAreNamed) {
  json document = HandmadeTokenizerJson(kSmall);
  document["added_tokens"][2]["id"] = 300;
  const auto tokenizer = Make(document);
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_TRUE(tokenizer->has_token(300));
  for (const int32_t id : {-1, 263, 299, 301, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->has_token(id));
    EXPECT_FALSE(tokenizer->is_special(id));
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    const auto text = tokenizer->Decode(std::vector<int32_t>{'a', id});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()), HasSubstr("ids[1] = " + std::to_string(id)));
  }
}

TEST(TokenizerTest, TheDigestIsOfTheBytes) {
  const json document = HandmadeTokenizerJson(kSmall);
  const auto digest = Make(document)->digest();
  EXPECT_EQ(Make(document)->digest(), digest);
  EXPECT_NE((*Tokenizer::Create(document.dump() + "\n"))->digest(), digest);
}

struct Refusal {
  const char* patch;
  const char* message;
};

TEST(TokenizerTest, WhatIsNotSupportedIsRefusedByFileAndField) {
  const std::vector<Refusal> refusals = {
      {R"({"model": {"type": "Unigram"}})", "model: type \"Unigram\""},
      {R"({"model": null})", "\"model\" is missing"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout"},
      {R"({"model": {"byte_fallback": true}})", "model: byte_fallback"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})", "model: end_of_word_suffix"},
      {R"({"model": {"vocab": {"!": null}}})", "byte 0x21"},
      {R"({"model": {"vocab": {"!": 34}}})", "is used twice"},
      {R"({"model": {"vocab": {"!": -1}}})", "model.vocab: id of \"!\""},
      {R"({"model": {"vocab": {"!": 4194304}}})", "model.vocab: id of \"!\""},
      {R"({"model": {"vocab": {"!": 1e30}}})", "model.vocab: id of \"!\""},
      {R"({"model": {"vocab": []}})", "model.vocab"},
      {R"({"model": {"merges": [["h", "e"], "he"]}})", "model.merges[1]"},
      {R"({"model": {"merges": ["a b c"]}})", "model.merges[0]"},
      {R"({"model": {"merges": [["h", "q"]]}})", "model.merges[0]"},
      {R"({"model": {"merges": {}}})", "model.merges"},
      {R"({"model": {"new_field": 1}})", "unknown field \"new_field\""},
      {R"({"version": "2.0"})", "version"},
      {R"({"novelty": {}})", "unknown field \"novelty\""},
      {R"({"normalizer": {"type": "NFKC"}})", "normalizer: type \"NFKC\""},
      {R"({"normalizer": 3})", "normalizer"},
      {R"({"pre_tokenizer": null})", "\"pre_tokenizer\" is missing"},
      {R"({"pre_tokenizer": {"type": "Whitespace", "pretokenizers": null}})", "\"Whitespace\""},
      {R"({"pre_tokenizer": {"pretokenizers": []}})", "must end with ByteLevel"},
      {R"({"pre_tokenizer": {"pretokenizers": [{"type": "ByteLevel"}, {"type": "ByteLevel"}]}})",
       "pre_tokenizer.pretokenizers[1]"},
      {R"({"pre_tokenizer": {"pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\w"},
          "behavior": "Isolated"}, {"type": "ByteLevel", "add_prefix_space": false}]}})",
       "pre_tokenizer.pretokenizers[0].pattern: pattern \"\\w\""},
      {R"({"pre_tokenizer": {"pretokenizers": [{"type": "Split", "pattern": {"Regex": "a"},
          "behavior": "MergedWithNext"}]}})",
       "\"MergedWithNext\""},
      {R"({"post_processor": {"type": "BertProcessing"}})", "\"BertProcessing\""},
      {R"({"decoder": {"type": "Metaspace"}})", "decoder: "},
      {R"({"decoder": null})", "\"decoder\" is missing"},
      {R"({"added_tokens": [{"id": 256, "content": ""}]})", "added_tokens[0]"},
      {R"({"added_tokens": [{"id": -2, "content": "x"}]})", "added_tokens[0].id"},
      {R"({"added_tokens": [{"id": 9, "content": "xyz"}]})", "contradict model.vocab"},
      {R"({"added_tokens": [{"id": 300, "content": "<x>", "single_word": true}]})", "single_word"},
      {R"({"added_tokens": [{"id": 300, "content": "<x>"}, {"id": 300, "content": "<y>"}]})",
       "added_tokens[1]: id is used twice"},
  };
  for (const Refusal& refusal : refusals) {
    json document = HandmadeTokenizerJson({.merges = {{"h", "e"}}});
    document.merge_patch(json::parse(refusal.patch));
    const auto tokenizer = Tokenizer::Create(document.dump(), "dir/tokenizer.json");
    ASSERT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << refusal.patch;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("dir/tokenizer.json"));
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(refusal.message));
  }
}

TEST(TokenizerTest, WhatIsNoJsonIsRefused) {
  for (const std::string& bytes : std::vector<std::string>{
           "", "{", "null", "[]", "7", "{\"a\": \"\xFF\"}", "{\"a\": \"\\ud800\"}",
           std::string(1'000'000, '['), std::string(100'000, '{'), std::string("\0\0", 2)}) {
    const auto tokenizer = Tokenizer::Create(bytes, "f.json");
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("f.json"));
    EXPECT_TRUE(IsValidUtf8(std::string(tokenizer.status().message())));
  }
}

TEST(TokenizerTest, DamagedFilesNeverCrash) {
  const std::string good = HandmadeTokenizerJson(kSmall).dump();
  std::mt19937 random(3);
  for (int trial = 0; trial < 1500; ++trial) {
    std::string bytes = good;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (trial % 3 == 0) bytes.resize(random() % bytes.size());
    const auto tokenizer = Tokenizer::Create(bytes);
    if (tokenizer.ok()) (*tokenizer)->Encode("hello 12 <eos>").IgnoreError();
  }
}

TEST(TokenizerTest, LoadReadsADirectoryOrNamesWhatIsMissing) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "lockstep_tokenizer_test";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "tokenizer.json") << HandmadeTokenizerJson(kSmall).dump();
  const auto tokenizer = Tokenizer::Load(directory.string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 264);
  std::filesystem::remove_all(directory);
  const auto missing = Tokenizer::Load(directory.string());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("tokenizer.json"));
  // Nobody writes to it: loading must not wait for that.
  std::filesystem::create_directories(directory);
  ASSERT_EQ(mkfifo((directory / "tokenizer.json").c_str(), 0600), 0);
  const auto fifo = Tokenizer::Load(directory.string());
  EXPECT_EQ(fifo.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(fifo.status().message()), HasSubstr("is no regular file"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace lockstep::text
