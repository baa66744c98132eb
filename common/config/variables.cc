#include "common/config/variables.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::config {
namespace {

constexpr std::string_view kOpen = "${";
constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_";
constexpr std::string_view kVariables[] = {"POD_NAME", "POD_IP"};

absl::StatusOr<std::string> ValueOf(
    const std::string& variable,
    const std::function<std::optional<std::string>(const std::string&)>& value_of) {
  if (std::find(std::begin(kVariables), std::end(kVariables), variable) == std::end(kVariables)) {
    return absl::InvalidArgumentError("is none of ${POD_NAME}, ${POD_IP}");
  }
  std::optional<std::string> value = value_of(variable);
  if (!value.has_value() || value->empty()) {
    return absl::InvalidArgumentError("is not set in the environment");
  }
  if (value->find_first_of("\"'\\\n") != std::string::npos) {
    return absl::InvalidArgumentError("has a value with a quote, a backslash or a line end");
  }
  return *std::move(value);
}

}  // namespace

absl::StatusOr<std::string> ExpandVariables(
    const std::string& name, const std::string& text,
    const std::function<std::optional<std::string>(const std::string&)>& value_of) {
  std::string out;
  size_t done = 0;
  for (size_t open = text.find(kOpen); open != std::string::npos; open = text.find(kOpen, done)) {
    out.append(text, done, open - done);
    const size_t begin = open + kOpen.size();
    const size_t close = std::min(text.find_first_not_of(kLetters, begin), text.size());
    const std::string variable = text.substr(begin, close - begin);
    const bool closed = close < text.size() && text[close] == '}';
    const absl::StatusOr<std::string> value =
        closed ? ValueOf(variable, value_of) : absl::InvalidArgumentError("has no closing brace");
    if (!value.ok()) {
      const auto line =
          1 + std::count(text.begin(), text.begin() + static_cast<int64_t>(open), '\n');
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", line, ": ${", variable, "} ", value.status().message()));
    }
    out += *value;
    done = close + 1;
  }
  return out.append(text, done);
}

std::optional<std::string> FromEnvironment(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace lockstep::config
