#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What a tokenizer.json says, checked and resolved: plain data without JSON.
namespace lockstep::text {

// Ids lie in [0, kTokenIdsMax). The bound keeps a hostile id from reserving gigabytes.
inline constexpr int64_t kTokenIdsMax = int64_t{1} << 22;

// An entry of model.vocab.
struct VocabularyEntry {
  std::string bytes;
  int32_t id = 0;
  // False for an entry that is not written in the byte alphabet: merging bytes can never give it.
  bool is_byte_level = true;
};

// Adjacent tokens `left` and `right` become `result`, whose bytes are theirs joined. The rank of a
// rule is its index; lower ranks go first.
struct MergeRule {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
};

// A token that is found in the text before anything is merged.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  // Takes white space on its left (right) with it.
  bool strips_left = false;
  bool strips_right = false;
  // Looked for in normalised text instead of the text as given.
  bool is_normalized = false;
  bool is_special = false;
};

// One step of pre-tokenisation: pieces are cut at the matches of a pattern.
struct SplitRule {
  std::string pattern;
  // The pattern is a string to find, not a regular expression in Oniguruma's syntax.
  bool is_literal = false;
  // Every match and every gap is a piece when false; only the kept ones are when true.
  bool removes = false;
  // With `removes`: the gaps go and the matches stay, instead of the other way round.
  bool removes_gaps = false;
  // For errors: file and field.
  std::string where;
};

struct TokenizerSpec {
  std::vector<VocabularyEntry> vocabulary;
  std::vector<MergeRule> merges;
  // A word that is in the vocabulary as a whole is that token, whatever the merges say.
  bool ignores_merges = false;
  std::vector<AddedToken> added_tokens;
  bool normalizes_nfc = false;
  // A piece that does not begin with a space gets one.
  bool adds_prefix_space = false;
  std::vector<SplitRule> splits;
  // What add_special_tokens puts around the text.
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

}  // namespace lockstep::text
