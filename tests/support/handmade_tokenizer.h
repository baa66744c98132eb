#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "services/text/tokenizer.h"

namespace lockstep::text {

// A small tokenizer for tests: byte b has id b, the merges follow from id 256 in their order, then
// the special tokens, then the other added tokens. Splits as Qwen3 does; no normalizer, no
// template.
struct HandmadeTokenizer {
  // Bytes of both parts, lowest rank first.
  std::vector<std::pair<std::string, std::string>> merges;
  // Write merges as "a b" instead of ["a", "b"].
  bool writes_merges_as_strings = false;
  std::vector<std::string> special_tokens;
  std::vector<std::string> added_tokens;
};

// The tokenizer.json, for tests that change it before they read it.
nlohmann::json HandmadeTokenizerJson(const HandmadeTokenizer& tokenizer);

// The tokenizer; a test that gives an impossible description dies.
std::shared_ptr<const Tokenizer> MakeHandmadeTokenizer(const HandmadeTokenizer& tokenizer);

}  // namespace lockstep::text
