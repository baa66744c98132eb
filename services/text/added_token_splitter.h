#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/text/tokenizer_spec.h"

namespace lockstep::text {

// Finds added tokens in text: leftmost first, the longest of those that begin at one place.
// Immutable; thread-safe.
class AddedTokenSplitter {
 public:
  // A part of the text between tokens when `id` is -1, else an added token.
  struct Piece {
    std::string_view text;
    int32_t id = -1;
  };

  explicit AddedTokenSplitter(std::vector<AddedToken> tokens);

  // Appends the pieces of `text` (valid UTF-8) in order. White space that a token strips is part of
  // the token's piece.
  void Split(std::string_view text, std::vector<Piece>* pieces) const;

 private:
  // Index into tokens_ and length of the longest token at the start of `text`; length 0 is none.
  struct Found {
    int32_t token = -1;
    size_t size_bytes = 0;
  };
  Found Longest(std::string_view text) const;

  static constexpr int32_t kNoToken = -1;
  std::vector<AddedToken> tokens_;
  // A trie: (node << 8 | byte) -> node, and the token that ends at each node.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_of_node_;
  bool begins_token_[256] = {};
};

}  // namespace lockstep::text
