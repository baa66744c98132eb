#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "services/text/added_token_splitter.h"
#include "services/text/bpe.h"
#include "services/text/split_pattern.h"
#include "services/text/tokenizer_spec.h"

namespace lockstep::text {

struct EncodeOptions {
  // Put the ids of the file's template (for example begin-of-text) around those of the text.
  bool adds_special_tokens = true;
};

struct DecodeOptions {
  // Leave out tokens that the file marks as special.
  bool skips_special_tokens = false;
};

// Text <-> ids as a Hugging Face tokenizer.json says. Example:
//   LOCKSTEP_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load("/models/qwen3"));
//   LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode("Hello"));
// Immutable; thread-safe.
class Tokenizer {
 private:
  struct Private {};

 public:
  // From the bytes of a tokenizer.json; `file` is its name in errors. InvalidArgument names file
  // and field of what is wrong or not supported (see tokenizer_json.h).
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Create(
      std::string_view tokenizer_json, const std::string& file = "tokenizer.json");
  // From `directory`/tokenizer.json. NotFound when it cannot be read.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& directory);

  // Ids of `text`, any bytes up to 512 MiB: ill-formed UTF-8 is replaced first (see utf8.h).
  // Contents of added tokens in the text become those tokens. InvalidArgument when the text is too
  // long or the file's pattern gives up on it.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              EncodeOptions options = {}) const;

  // The bytes of all ids in a row, not necessarily valid UTF-8. InvalidArgument naming index and
  // value of an id that has no token.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                     DecodeOptions options = {}) const;

  // The highest id of a token, plus 1. A model's output layer may have more rows than that.
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  // False outside [0, vocab_size()) and for ids that the file leaves out.
  bool has_token(int32_t id) const { return Find(id) != nullptr && Find(id)->exists; }
  bool is_special(int32_t id) const { return Find(id) != nullptr && Find(id)->is_special; }
  // The bytes of a token, empty without one. They live as long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;
  // The added token with this content, for example "<|im_end|>".
  std::optional<int32_t> FindAddedToken(std::string_view content) const;

  // Of the bytes of the file.
  const base::Digest128& digest() const { return digest_; }

  // For Create only.
  Tokenizer(Private, TokenizerSpec spec, std::vector<SplitPattern> splits, base::Digest128 digest);

 private:
  struct Token {
    uint32_t begin = 0;
    uint32_t size_bytes = 0;
    bool exists = false;
    bool is_special = false;
  };
  // Everything one call of Encode works with, so that nothing is allocated for each word.
  struct EncodeWork {
    MatchScratch match;
    BpeScratch bpe;
    std::vector<std::string_view> pieces;
    std::vector<std::string_view> next_pieces;
    std::vector<int32_t> ids;
  };

  const Token* Find(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? &tokens_[id] : nullptr;
  }
  void AddToken(std::string_view bytes, int32_t id, bool is_special);
  // Text without added tokens that are matched as given / without any added tokens.
  absl::Status EncodeGivenText(std::string_view text, EncodeWork* work) const;
  absl::Status EncodePlainText(std::string_view text, EncodeWork* work) const;

  // Without vocabulary and merges, which the members below hold in their own form.
  TokenizerSpec spec_;
  const std::vector<SplitPattern> splits_;
  const base::Digest128 digest_;
  const Bpe bpe_;
  const AddedTokenSplitter given_splitter_;
  const AddedTokenSplitter normalized_splitter_;
  std::string token_bytes_;
  std::vector<Token> tokens_;
};

}  // namespace lockstep::text
