#include "services/text/model_json.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/text/byte_alphabet.h"
#include "services/text/string_hash.h"

namespace lockstep::text {
namespace {

using IdOfToken = absl::flat_hash_map<std::string_view, int32_t, StringHash, std::equal_to<>>;

// Fields of a BPE model that change the result and that byte-level models do not use.
absl::Status RefuseUnsupported(const JsonField& model) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string type, model.String("type"));
  if (type != "BPE") return model.Error("type \"" + type + "\" is not supported, only \"BPE\" is");
  LOCKSTEP_RETURN_IF_ERROR(model.ExpectMembers(
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (const std::optional<JsonField> dropout = model.Find("dropout");
      dropout.has_value() && !(dropout->value().is_number() && dropout->value() == 0)) {
    return dropout->Error("must be null or 0");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, model.String(name, ""));
    if (!text.empty()) return model.Error(absl::StrCat(name, " must be null or empty"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const bool has_byte_fallback, model.Bool("byte_fallback", false));
  if (has_byte_fallback) return model.Error("byte_fallback = true is not supported");
  return absl::OkStatus();
}

absl::Status ParseVocabulary(const JsonField& field, TokenizerSpec* spec, IdOfToken* id_of_token) {
  if (!field.value().is_object()) return field.Error("must be an object");
  spec->vocabulary.reserve(field.size());
  id_of_token->reserve(field.size());
  absl::flat_hash_set<int32_t> ids;
  ids.reserve(field.size());
  std::array<bool, 256> has_byte{};
  for (const auto& [token, value] : field.value().items()) {
    const auto error = [&](std::string_view what) {
      return field.Error("id of \"" + token + "\" " + std::string(what));
    };
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= kTokenIdsMax) {
      return error(absl::StrCat("must be an integer in [0, ", kTokenIdsMax, ")"));
    }
    VocabularyEntry entry{.id = static_cast<int32_t>(value.get<uint64_t>())};
    if (!ids.insert(entry.id).second) return error("is used twice");
    std::optional<std::string> bytes = BytesOfAlphabetText(token);
    entry.is_byte_level = bytes.has_value();
    entry.bytes = entry.is_byte_level ? *std::move(bytes) : token;
    if (entry.is_byte_level && entry.bytes.size() == 1) {
      has_byte[static_cast<uint8_t>(entry.bytes[0])] = true;
    }
    id_of_token->emplace(token, entry.id);
    spec->vocabulary.push_back(std::move(entry));
  }
  for (size_t byte = 0; byte < has_byte.size(); ++byte) {
    if (has_byte[byte]) continue;
    return field.Error(absl::StrCat("byte 0x", absl::Hex(byte, absl::kZeroPad2),
                                    " has no token; only complete byte-level vocabularies are "
                                    "supported"));
  }
  return absl::OkStatus();
}

// A merge is written as ["a", "b"] or as "a b".
std::optional<std::pair<std::string_view, std::string_view>> MergeParts(
    const nlohmann::json& value) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(value[0].get_ref<const std::string&>(),
                                                         value[1].get_ref<const std::string&>());
  }
  if (!value.is_string()) return std::nullopt;
  const std::string_view text = value.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    return std::nullopt;
  }
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

absl::Status ParseMerges(const JsonField& field, const IdOfToken& id_of_token,
                         TokenizerSpec* spec) {
  LOCKSTEP_RETURN_IF_ERROR(field.ExpectArray());
  spec->merges.reserve(field.size());
  std::string joined;
  for (size_t i = 0; i < field.size(); ++i) {
    const auto parts = MergeParts(field.value()[i]);
    if (!parts.has_value()) return field.At(i).Error("must be [\"a\", \"b\"] or \"a b\"");
    joined.assign(parts->first);
    joined.append(parts->second);
    const auto left = id_of_token.find(parts->first);
    const auto right = id_of_token.find(parts->second);
    const auto result = id_of_token.find(joined);
    const auto end = id_of_token.end();
    if (left == end || right == end || result == end) {
      return field.At(i).Error("both parts and their concatenation must be in model.vocab");
    }
    spec->merges.push_back({left->second, right->second, result->second});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseModel(const JsonField& model, TokenizerSpec* spec) {
  LOCKSTEP_RETURN_IF_ERROR(RefuseUnsupported(model));
  LOCKSTEP_ASSIGN_OR_RETURN(spec->ignores_merges, model.Bool("ignore_merges", false));
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField vocabulary, model.Member("vocab"));
  IdOfToken id_of_token;
  LOCKSTEP_RETURN_IF_ERROR(ParseVocabulary(vocabulary, spec, &id_of_token));
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField merges, model.Member("merges"));
  return ParseMerges(merges, id_of_token, spec);
}

}  // namespace lockstep::text
