#include "services/text/pipeline_json.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::text {
namespace {

// The pattern of GPT-2, which ByteLevel applies unless use_regex is false.
constexpr char kByteLevelPattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

absl::StatusOr<std::string> TypeOf(const JsonField& field) {
  if (!field.value().is_object()) return field.Error("must be an object or null");
  return field.String("type");
}

absl::Status Unsupported(const JsonField& field, const std::string& type) {
  return field.Error("type \"" + type + "\" is not supported");
}

// Calls `visit` for each component that is not a Sequence, in order. JSON nesting is bounded, so is
// the recursion.
absl::Status ForEachComponent(const JsonField& field, const char* list_name,
                              const std::function<absl::Status(const JsonField&)>& visit) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string type, TypeOf(field));
  if (type != "Sequence") return visit(field);
  LOCKSTEP_RETURN_IF_ERROR(field.ExpectMembers({"type", list_name}));
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField list, field.Member(list_name));
  LOCKSTEP_RETURN_IF_ERROR(list.ExpectArray());
  for (size_t i = 0; i < list.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(ForEachComponent(list.At(i), list_name, visit));
  }
  return absl::OkStatus();
}

absl::Status ParseNormalizer(const JsonField& field, TokenizerSpec* spec) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string type, TypeOf(field));
  if (type != "NFC") return Unsupported(field, type);
  spec->normalizes_nfc = true;
  return field.ExpectMembers({"type"});
}

absl::Status ParseSplit(const JsonField& field, TokenizerSpec* spec) {
  LOCKSTEP_RETURN_IF_ERROR(field.ExpectMembers({"type", "pattern", "behavior", "invert"}));
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField pattern, field.Member("pattern"));
  LOCKSTEP_RETURN_IF_ERROR(pattern.ExpectMembers({"Regex", "String"}));
  if (pattern.size() != 1) return pattern.Error("must hold either Regex or String");
  SplitRule rule;
  rule.is_literal = pattern.value().contains("String");
  LOCKSTEP_ASSIGN_OR_RETURN(rule.pattern, pattern.String(rule.is_literal ? "String" : "Regex"));
  if (rule.pattern.empty()) return pattern.Error("must not be empty");
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string behavior, field.String("behavior"));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool inverts, field.Bool("invert", false));
  if (behavior != "Isolated" && behavior != "Removed") {
    return field.Error("behavior \"" + behavior + "\" is not supported");
  }
  rule.removes = behavior == "Removed";
  rule.removes_gaps = rule.removes && inverts;
  rule.where = pattern.Place();
  spec->splits.push_back(std::move(rule));
  return absl::OkStatus();
}

absl::Status ParseDigits(const JsonField& field, TokenizerSpec* spec) {
  LOCKSTEP_RETURN_IF_ERROR(field.ExpectMembers({"type", "individual_digits"}));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool is_individual, field.Bool("individual_digits", false));
  spec->splits.push_back({.pattern = is_individual ? "\\p{N}" : "\\p{N}+", .where = field.Place()});
  return absl::OkStatus();
}

absl::Status ExpectByteLevelMembers(const JsonField& field) {
  return field.ExpectMembers({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

absl::Status ParseByteLevel(const JsonField& field, TokenizerSpec* spec) {
  LOCKSTEP_RETURN_IF_ERROR(ExpectByteLevelMembers(field));
  LOCKSTEP_ASSIGN_OR_RETURN(spec->adds_prefix_space, field.Bool("add_prefix_space", true));
  if (spec->adds_prefix_space && !spec->splits.empty()) {
    return field.Error("add_prefix_space after another pre-tokenizer is not supported");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const bool uses_regex, field.Bool("use_regex", true));
  if (uses_regex) spec->splits.push_back({.pattern = kByteLevelPattern, .where = field.Place()});
  return absl::OkStatus();
}

absl::Status ParsePreTokenizer(const JsonField& field, TokenizerSpec* spec) {
  bool saw_byte_level = false;
  LOCKSTEP_RETURN_IF_ERROR(
      ForEachComponent(field, "pretokenizers", [&](const JsonField& part) -> absl::Status {
        if (saw_byte_level) return part.Error("ByteLevel must be the last pre-tokenizer");
        LOCKSTEP_ASSIGN_OR_RETURN(const std::string type, TypeOf(part));
        if (type == "Split") return ParseSplit(part, spec);
        if (type == "Digits") return ParseDigits(part, spec);
        if (type != "ByteLevel") return Unsupported(part, type);
        saw_byte_level = true;
        return ParseByteLevel(part, spec);
      }));
  return saw_byte_level ? absl::OkStatus() : field.Error("must end with ByteLevel");
}

// The ids of one {"SpecialToken": {"id": name}} item.
absl::StatusOr<std::vector<int32_t>> IdsOfTemplateToken(const JsonField& item,
                                                        const JsonField& special_tokens) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string name, item.String("id"));
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField entry, special_tokens.Member(name));
  LOCKSTEP_RETURN_IF_ERROR(entry.ExpectMembers({"id", "ids", "tokens"}));
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField list, entry.Member("ids"));
  LOCKSTEP_RETURN_IF_ERROR(list.ExpectArray());
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.size(); ++i) {
    const nlohmann::json& id = list.At(i).value();
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kTokenIdsMax) {
      return list.At(i).Error("must be a token id");
    }
    ids.push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return ids;
}

// A later template wraps what earlier ones made, so its ids lie further out.
absl::Status ParseTemplate(const JsonField& field, TokenizerSpec* spec) {
  LOCKSTEP_RETURN_IF_ERROR(field.ExpectMembers({"type", "single", "pair", "special_tokens"}));
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField single, field.Member("single"));
  LOCKSTEP_RETURN_IF_ERROR(single.ExpectArray());
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField special_tokens, field.Member("special_tokens"));
  std::vector<int32_t> prefix, suffix;
  int texts = 0;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonField item = single.At(i);
    LOCKSTEP_RETURN_IF_ERROR(item.ExpectMembers({"SpecialToken", "Sequence"}));
    if (item.size() != 1) return item.Error("must hold either SpecialToken or Sequence");
    if (const std::optional<JsonField> token = item.Find("SpecialToken"); token.has_value()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                                IdsOfTemplateToken(*token, special_tokens));
      std::vector<int32_t>& side = texts == 0 ? prefix : suffix;
      side.insert(side.end(), ids.begin(), ids.end());
    } else {
      LOCKSTEP_ASSIGN_OR_RETURN(const JsonField sequence, item.Member("Sequence"));
      LOCKSTEP_ASSIGN_OR_RETURN(const std::string name, sequence.String("id"));
      if (name != "A") return sequence.Error("id must be \"A\"");
      ++texts;
    }
  }
  if (texts != 1) return single.Error("must hold Sequence A once");
  spec->prefix_ids.insert(spec->prefix_ids.begin(), prefix.begin(), prefix.end());
  spec->suffix_ids.insert(spec->suffix_ids.end(), suffix.begin(), suffix.end());
  return absl::OkStatus();
}

absl::Status ParsePostProcessor(const JsonField& field, TokenizerSpec* spec) {
  return ForEachComponent(field, "processors", [&](const JsonField& part) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string type, TypeOf(part));
    if (type == "TemplateProcessing") return ParseTemplate(part, spec);
    // ByteLevel moves offsets only, never ids.
    return type == "ByteLevel" ? ExpectByteLevelMembers(part) : Unsupported(part, type);
  });
}

absl::Status ParseDecoder(const JsonField& field) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string type, TypeOf(field));
  return type == "ByteLevel" ? ExpectByteLevelMembers(field) : Unsupported(field, type);
}

}  // namespace

absl::Status ParsePipeline(const JsonField& root, TokenizerSpec* spec) {
  if (const auto normalizer = root.Find("normalizer"); normalizer.has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(
        ForEachComponent(*normalizer, "normalizers",
                         [&](const JsonField& part) { return ParseNormalizer(part, spec); }));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField pre_tokenizer, root.Member("pre_tokenizer"));
  LOCKSTEP_RETURN_IF_ERROR(ParsePreTokenizer(pre_tokenizer, spec));
  if (const auto post_processor = root.Find("post_processor"); post_processor.has_value()) {
    LOCKSTEP_RETURN_IF_ERROR(ParsePostProcessor(*post_processor, spec));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField decoder, root.Member("decoder"));
  return ParseDecoder(decoder);
}

}  // namespace lockstep::text
