#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/strong_id.h"

namespace lockstep::log {

// One key and its typed value. The key is a literal in snake_case with its unit last
// ("wait_seconds").
class Field {
 public:
  using Value = std::variant<std::string, int64_t, uint64_t, double, bool>;

  Field(std::string_view key, std::string value) : key_(key), value_(std::move(value)) {}
  Field(std::string_view key, std::string_view value) : Field(key, std::string(value)) {}
  Field(std::string_view key, absl::string_view value) : Field(key, std::string(value)) {}
  Field(std::string_view key, const char* value) : Field(key, std::string(value)) {}
  Field(std::string_view key, bool value) : key_(key), value_(value) {}
  Field(std::string_view key, std::floating_point auto value)
      : key_(key), value_(static_cast<double>(value)) {}
  Field(std::string_view key, std::signed_integral auto value)
      : key_(key), value_(static_cast<int64_t>(value)) {}
  Field(std::string_view key, std::unsigned_integral auto value)
      : key_(key), value_(static_cast<uint64_t>(value)) {}
  // "CODE: message", or "OK".
  Field(std::string_view key, const absl::Status& status) : Field(key, status.ToString()) {}
  // In seconds.
  Field(std::string_view key, absl::Duration duration)
      : Field(key, absl::ToDoubleSeconds(duration)) {}
  template <typename Tag, typename T>
  Field(std::string_view key, const base::StrongId<Tag, T>& id) : Field(key, id.value()) {}

  std::string_view key() const { return key_; }
  const Value& value() const { return value_; }

 private:
  std::string_view key_;
  Value value_;
};

}  // namespace lockstep::log
