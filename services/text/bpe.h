#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/text/string_hash.h"
#include "services/text/tokenizer_spec.h"

namespace lockstep::text {

// Memory that encoding one word needs; use it again for many words, from one thread.
struct BpeScratch {
  // A token of the word, linked to its neighbours by index; -1 is none. A merged-away one has id
  // -1.
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };
  // A merge that was possible when it was pushed. It is stale when the ids have changed since.
  struct Candidate {
    uint32_t rank;
    int32_t at;
    int32_t left;
    int32_t right;
    int32_t result;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Byte-pair encoding of words over bytes. Merges go in order of rank, equal ranks from left to
// right, in O(n log n) for a word of n bytes. Immutable; thread-safe.
class Bpe {
 public:
  // `spec` is what ParseTokenizerJson returns: all 256 bytes have a token.
  explicit Bpe(const TokenizerSpec& spec);

  // Appends the ids of `word`, which has less than 2^31 bytes.
  void Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Whole {
    int32_t id = 0;
    // The word is this one token, without looking at the merges.
    bool is_final = false;
  };
  struct Rule {
    uint32_t rank = 0;
    int32_t result = 0;
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
  }
  void Merge(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  void PushCandidate(int32_t at, BpeScratch* scratch) const;

  std::array<int32_t, 256> id_of_byte_{};
  absl::flat_hash_map<std::string, Whole, StringHash, std::equal_to<>> wholes_;
  absl::flat_hash_map<uint64_t, Rule> rules_;
};

}  // namespace lockstep::text
