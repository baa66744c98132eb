#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lockstep::text {

// Parses a JSON file of bounded nesting. This is the one place where exceptions of the JSON library
// become a status; everything else asks for a value's type before it touches it.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view bytes, const std::string& file);

// One value of a parsed JSON file that knows its own place, so that every error names the file and
// the field. Points into the document, which must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string file, std::string path)
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  // "<file>: <path>".
  std::string Place() const;
  // InvalidArgument "<place>: <what>".
  absl::Status Error(std::string_view what) const;

  // Errors when this is not an object or holds a member that is not named: a field that we do not
  // know could change the result.
  absl::Status ExpectMembers(std::initializer_list<std::string_view> names) const;
  // The member, or nullopt when it is missing or null. This is an object.
  std::optional<JsonField> Find(std::string_view name) const;
  absl::StatusOr<JsonField> Member(std::string_view name) const;

  // Typed members of an object; a missing or null member is `fallback`, where there is one.
  absl::StatusOr<bool> Bool(std::string_view name, bool fallback) const;
  absl::StatusOr<std::string> String(std::string_view name) const;
  absl::StatusOr<std::string> String(std::string_view name, std::string_view fallback) const;
  absl::StatusOr<int64_t> Integer(std::string_view name, int64_t low, int64_t high) const;

  absl::Status ExpectArray() const;
  size_t size() const { return value_->size(); }
  // An element of an array, `index` < size().
  JsonField At(size_t index) const;

  const nlohmann::json& value() const { return *value_; }

 private:
  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace lockstep::text
