#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lockstep::worker {

// Parses one JSON object of an untrusted file. INVALID_ARGUMENT names `file` and, where the text
// broke, the last field read; duplicate keys and nesting beyond 32 are refused, because a parser
// that keeps one of two values is one that hides the other.
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& file, std::string_view text);

// A value for an error message: scalars as text cut to a readable length, containers by kind.
std::string DescribeJson(const nlohmann::json& value);

// Typed, range-checked reading of the fields of one JSON object. Errors are INVALID_ARGUMENT and
// name file, field and value. Example:
//   JsonFields fields("config.json", object);
//   LOCKSTEP_ASSIGN_OR_RETURN(const int64_t layers, fields.Integer("num_hidden_layers", 1, 1024));
class JsonFields {
 public:
  // The object is borrowed.
  JsonFields(std::string file, const nlohmann::json& object)
      : file_(std::move(file)), object_(object) {}

  // The field's value; null when it is absent or JSON null.
  const nlohmann::json* Find(std::string_view field) const;
  absl::StatusOr<int64_t> Integer(std::string_view field, int64_t least, int64_t most) const;
  // Finite and in [least, most].
  absl::StatusOr<double> Real(std::string_view field, double least, double most) const;
  absl::StatusOr<bool> Boolean(std::string_view field, bool absent) const;
  absl::StatusOr<std::string> String(std::string_view field) const;

  absl::Status Missing(std::string_view field) const;
  absl::Status Wrong(std::string_view field, const nlohmann::json& value,
                     const std::string& expected) const;

 private:
  std::string file_;
  const nlohmann::json& object_;
};

}  // namespace lockstep::worker
