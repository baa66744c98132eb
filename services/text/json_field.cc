#include "services/text/json_field.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/text/utf8.h"

namespace lockstep::text {
namespace {

constexpr int kNestingMax = 64;

// Nesting costs the parser about a hundred bytes for each byte of the file, so it is bounded first.
bool NestingIsBounded(std::string_view bytes) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kNestingMax) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view bytes, const std::string& file) {
  if (!NestingIsBounded(bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": JSON is nested deeper than ", kNestingMax, " levels"));
  }
  try {
    return nlohmann::json::parse(bytes.begin(), bytes.end());
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", ReplaceInvalidUtf8(error.what())));
  }
}

std::string JsonField::Place() const {
  return absl::StrCat(file_, ": ", path_.empty() ? "top level" : path_);
}

absl::Status JsonField::Error(std::string_view what) const {
  return absl::InvalidArgumentError(Place() + ": " + std::string(what));
}

absl::Status JsonField::ExpectMembers(std::initializer_list<std::string_view> names) const {
  if (!value_->is_object()) return Error("must be an object");
  for (const auto& [name, unused] : value_->items()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return Error(absl::StrCat("unknown field \"", name, "\""));
    }
  }
  return absl::OkStatus();
}

std::optional<JsonField> JsonField::Find(std::string_view name) const {
  if (!value_->is_object()) return std::nullopt;
  const auto it = value_->find(std::string(name));
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonField(*it, file_, path_.empty() ? std::string(name) : path_ + "." + std::string(name));
}

absl::StatusOr<JsonField> JsonField::Member(std::string_view name) const {
  std::optional<JsonField> member = Find(name);
  if (!member.has_value()) return Error("field \"" + std::string(name) + "\" is missing");
  return *std::move(member);
}

absl::StatusOr<bool> JsonField::Bool(std::string_view name, bool fallback) const {
  const std::optional<JsonField> member = Find(name);
  if (!member.has_value()) return fallback;
  if (!member->value_->is_boolean()) return member->Error("must be true or false");
  return member->value_->get<bool>();
}

absl::StatusOr<std::string> JsonField::String(std::string_view name) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField member, Member(name));
  if (!member.value_->is_string()) return member.Error("must be a string");
  return member.value_->get_ref<const std::string&>();
}

absl::StatusOr<std::string> JsonField::String(std::string_view name,
                                              std::string_view fallback) const {
  if (!Find(name).has_value()) return std::string(fallback);
  return String(name);
}

absl::StatusOr<int64_t> JsonField::Integer(std::string_view name, int64_t low, int64_t high) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const JsonField member, Member(name));
  const bool fits = member.value_->is_number_integer() &&
                    (!member.value_->is_number_unsigned() ||
                     member.value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  const int64_t number = fits ? member.value_->get<int64_t>() : 0;
  if (!fits || number < low || number > high) {
    return member.Error(absl::StrCat("must be an integer in [", low, ", ", high, "]"));
  }
  return number;
}

absl::Status JsonField::ExpectArray() const {
  return value_->is_array() ? absl::OkStatus() : Error("must be an array");
}

JsonField JsonField::At(size_t index) const {
  return JsonField((*value_)[index], file_, absl::StrCat(path_, "[", index, "]"));
}

}  // namespace lockstep::text
