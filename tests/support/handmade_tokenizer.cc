#include "tests/support/handmade_tokenizer.h"

#include "common/base/check.h"
#include "services/text/byte_alphabet.h"

namespace lockstep::text {
namespace {

constexpr char kQwen3Pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

nlohmann::json AddedTokenJson(const std::string& content, int id, bool is_special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", is_special}};
}

}  // namespace

nlohmann::json HandmadeTokenizerJson(const HandmadeTokenizer& tokenizer) {
  nlohmann::json vocabulary = nlohmann::json::object();
  int next_id = 0;
  for (; next_id < 256; ++next_id) {
    vocabulary[AlphabetTextOfBytes(std::string(1, static_cast<char>(next_id)))] = next_id;
  }
  nlohmann::json merges = nlohmann::json::array();
  for (const auto& [left, right] : tokenizer.merges) {
    const std::string a = AlphabetTextOfBytes(left);
    const std::string b = AlphabetTextOfBytes(right);
    if (!vocabulary.contains(a + b)) vocabulary[a + b] = next_id++;
    if (tokenizer.writes_merges_as_strings) {
      merges.push_back(a + " " + b);
    } else {
      merges.push_back(nlohmann::json::array({a, b}));
    }
  }
  nlohmann::json added = nlohmann::json::array();
  for (const std::string& content : tokenizer.special_tokens) {
    added.push_back(AddedTokenJson(content, next_id++, true));
  }
  for (const std::string& content : tokenizer.added_tokens) {
    added.push_back(AddedTokenJson(content, next_id++, false));
  }
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", false},
                                     {"use_regex", false}};
  const nlohmann::json split = {{"type", "Split"},
                                {"pattern", {{"Regex", kQwen3Pattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"}, {"pretokenizers", nlohmann::json::array({split, byte_level})}}},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

std::shared_ptr<const Tokenizer> MakeHandmadeTokenizer(const HandmadeTokenizer& tokenizer) {
  auto made = Tokenizer::Create(HandmadeTokenizerJson(tokenizer).dump());
  LOCKSTEP_CHECK(made.ok()) << made.status();
  return *made;
}

}  // namespace lockstep::text
