#include "services/text/tokenizer_json.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/text/json_field.h"
#include "services/text/model_json.h"
#include "services/text/pipeline_json.h"

namespace lockstep::text {
namespace {

constexpr size_t kAddedTokenBytesMax = 1024;

absl::StatusOr<AddedToken> ParseAddedToken(const JsonField& field) {
  LOCKSTEP_RETURN_IF_ERROR(field.ExpectMembers(
      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
  AddedToken token;
  LOCKSTEP_ASSIGN_OR_RETURN(token.id, field.Integer("id", 0, kTokenIdsMax - 1));
  LOCKSTEP_ASSIGN_OR_RETURN(token.content, field.String("content"));
  if (token.content.empty() || token.content.size() > kAddedTokenBytesMax) {
    return field.Error(absl::StrCat("content must have 1 to ", kAddedTokenBytesMax, " bytes"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const bool is_single_word, field.Bool("single_word", false));
  if (is_single_word) return field.Error("single_word = true is not supported");
  LOCKSTEP_ASSIGN_OR_RETURN(token.strips_left, field.Bool("lstrip", false));
  LOCKSTEP_ASSIGN_OR_RETURN(token.strips_right, field.Bool("rstrip", false));
  LOCKSTEP_ASSIGN_OR_RETURN(token.is_special, field.Bool("special", false));
  LOCKSTEP_ASSIGN_OR_RETURN(token.is_normalized, field.Bool("normalized", !token.is_special));
  return token;
}

// Added tokens may repeat an entry of the vocabulary, but only with the same id.
absl::Status ParseAddedTokens(const JsonField& root, TokenizerSpec* spec) {
  const std::optional<JsonField> list = root.Find("added_tokens");
  if (!list.has_value()) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(list->ExpectArray());
  const nlohmann::json& vocabulary = root.value()["model"]["vocab"];
  absl::flat_hash_set<int32_t> vocabulary_ids;
  for (const VocabularyEntry& entry : spec->vocabulary) vocabulary_ids.insert(entry.id);
  absl::flat_hash_set<int32_t> ids;
  absl::flat_hash_set<std::string> contents;
  for (size_t i = 0; i < list->size(); ++i) {
    const JsonField field = list->At(i);
    LOCKSTEP_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(field));
    if (!ids.insert(token.id).second) return field.Error("id is used twice");
    if (!contents.insert(token.content).second) return field.Error("content is used twice");
    const auto same = vocabulary.find(token.content);
    const bool is_in_vocabulary = same != vocabulary.end();
    if (is_in_vocabulary ? *same != token.id : vocabulary_ids.contains(token.id)) {
      return field.Error("id and content contradict model.vocab");
    }
    spec->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view bytes, const std::string& file) {
  if (bytes.size() > kTokenizerFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": has ", bytes.size(), " bytes, at most ",
                                                   kTokenizerFileBytesMax, " are read"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(bytes, file));
  const JsonField root(document, file, "");
  LOCKSTEP_RETURN_IF_ERROR(
      root.ExpectMembers({"version", "truncation", "padding", "added_tokens", "normalizer",
                          "pre_tokenizer", "post_processor", "decoder", "model"}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string version, root.String("version"));
  if (version != "1.0") return root.Error("version must be \"1.0\"");
  TokenizerSpec spec;
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField model, root.Member("model"));
  LOCKSTEP_RETURN_IF_ERROR(ParseModel(model, &spec));
  LOCKSTEP_RETURN_IF_ERROR(ParseAddedTokens(root, &spec));
  LOCKSTEP_RETURN_IF_ERROR(ParsePipeline(root, &spec));
  return spec;
}

}  // namespace lockstep::text
