#include "services/text/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "services/text/nfc.h"
#include "services/text/tokenizer_json.h"
#include "services/text/utf8.h"

namespace lockstep::text {
namespace {

// Repair and normalisation make a text at most three times as long, and a word has to stay below
// 2^31 bytes.
constexpr size_t kTextBytesMax = size_t{512} << 20;

// The added tokens that are looked for in text as given, or in normalised text, where their own
// contents are normalised too.
std::vector<AddedToken> Select(const TokenizerSpec& spec, bool is_normalized) {
  std::vector<AddedToken> tokens;
  for (const AddedToken& token : spec.added_tokens) {
    if (token.is_normalized != is_normalized) continue;
    tokens.push_back(token);
    if (is_normalized && spec.normalizes_nfc) tokens.back().content = NormalizeNfc(token.content);
  }
  return tokens;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Create(std::string_view tokenizer_json,
                                                                   const std::string& file) {
  LOCKSTEP_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(tokenizer_json, file));
  std::vector<SplitPattern> splits;
  for (const SplitRule& rule : spec.splits) {
    LOCKSTEP_ASSIGN_OR_RETURN(SplitPattern split, SplitPattern::Create(rule));
    splits.push_back(std::move(split));
  }
  const base::Digest128 digest = base::Hasher().Bytes(tokenizer_json).Finish();
  const auto tokenizer =
      std::make_shared<const Tokenizer>(Private{}, std::move(spec), std::move(splits), digest);
  for (const std::vector<int32_t>* ids :
       {&tokenizer->spec_.prefix_ids, &tokenizer->spec_.suffix_ids}) {
    for (const int32_t id : *ids) {
      if (tokenizer->has_token(id)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": post_processor: id ", id, " has no token"));
    }
  }
  return tokenizer;
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bytes,
                            base::ReadRegularFile(path, kTokenizerFileBytesMax));
  return Create(bytes, path);
}

Tokenizer::Tokenizer(Private, TokenizerSpec spec, std::vector<SplitPattern> splits,
                     base::Digest128 digest)
    : spec_(std::move(spec)),
      splits_(std::move(splits)),
      digest_(digest),
      bpe_(spec_),
      given_splitter_(Select(spec_, false)),
      normalized_splitter_(Select(spec_, true)) {
  for (const VocabularyEntry& entry : spec_.vocabulary) AddToken(entry.bytes, entry.id, false);
  for (const AddedToken& token : spec_.added_tokens) {
    AddToken(token.content, token.id, token.is_special);
  }
  spec_.vocabulary = {};
  spec_.merges = {};
}

void Tokenizer::AddToken(std::string_view bytes, int32_t id, bool is_special) {
  if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(id + 1);
  tokens_[id] = {.begin = static_cast<uint32_t>(token_bytes_.size()),
                 .size_bytes = static_cast<uint32_t>(bytes.size()),
                 .exists = true,
                 .is_special = is_special};
  token_bytes_.append(bytes);
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  const Token* token = Find(id);
  if (token == nullptr) return {};
  return std::string_view(token_bytes_).substr(token->begin, token->size_bytes);
}

std::optional<int32_t> Tokenizer::FindAddedToken(std::string_view content) const {
  for (const AddedToken& token : spec_.added_tokens) {
    if (token.content == content) return token.id;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       EncodeOptions options) const {
  if (text.size() > kTextBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes, at most ", kTextBytesMax));
  }
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
  }
  EncodeWork work;
  if (options.adds_special_tokens) work.ids = spec_.prefix_ids;
  std::vector<AddedTokenSplitter::Piece> pieces;
  given_splitter_.Split(text, &pieces);
  for (const AddedTokenSplitter::Piece& piece : pieces) {
    if (piece.id >= 0) {
      work.ids.push_back(piece.id);
    } else {
      LOCKSTEP_RETURN_IF_ERROR(EncodeGivenText(piece.text, &work));
    }
  }
  if (options.adds_special_tokens) {
    work.ids.insert(work.ids.end(), spec_.suffix_ids.begin(), spec_.suffix_ids.end());
  }
  return std::move(work.ids);
}

absl::Status Tokenizer::EncodeGivenText(std::string_view text, EncodeWork* work) const {
  std::string normalized;
  if (spec_.normalizes_nfc && !IsClearlyNfc(text)) {
    normalized = NormalizeNfc(text);
    text = normalized;
  }
  std::vector<AddedTokenSplitter::Piece> pieces;
  normalized_splitter_.Split(text, &pieces);
  for (const AddedTokenSplitter::Piece& piece : pieces) {
    if (piece.id >= 0) {
      work->ids.push_back(piece.id);
    } else {
      LOCKSTEP_RETURN_IF_ERROR(EncodePlainText(piece.text, work));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodePlainText(std::string_view text, EncodeWork* work) const {
  std::string prefixed;
  if (spec_.adds_prefix_space && text.substr(0, 1) != " ") {
    prefixed = " " + std::string(text);
    text = prefixed;
  }
  work->pieces.assign(1, text);
  for (const SplitPattern& split : splits_) {
    work->next_pieces.clear();
    for (const std::string_view piece : work->pieces) {
      LOCKSTEP_RETURN_IF_ERROR(split.Split(piece, &work->match, &work->next_pieces));
    }
    work->pieces.swap(work->next_pieces);
  }
  for (const std::string_view word : work->pieces) bpe_.Encode(word, &work->bpe, &work->ids);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                              DecodeOptions options) const {
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!has_token(ids[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ids[", i, "] = ", ids[i], " has no token; the vocabulary has ", vocab_size(), " ids"));
    }
    if (options.skips_special_tokens && is_special(ids[i])) continue;
    bytes.append(TokenBytes(ids[i]));
  }
  return bytes;
}

}  // namespace lockstep::text
