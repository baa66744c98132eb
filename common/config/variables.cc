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
constexpr std::string_view kVariables[] = {"POD_NAME", "POD_NAMESPACE", "POD_IP"};

absl::StatusOr<std::string> ValueOf(
    const std::string& variable,
    const std::function<std::optional<std::string>(const std::string&)>& value_of) {
  if (std::find(std::begin(kVariables), std::end(kVariables), variable) == std::end(kVariables)) {
    return absl::InvalidArgumentError(
        "is none of ${POD_NAME}, ${POD_NAMESPACE}, ${POD_IP} ($${ stands for ${)");
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

// Where the comment of a line begins, if it has one. Quoted texts end with their line.
size_t CommentOf(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == 0 && c == '#') return i;
    if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (quote != 0 && c == '\\') {
      ++i;
    } else if (c == quote) {
      quote = 0;
    }
  }
  return line.size();
}

absl::Status ExpandLine(
    std::string_view text,
    const std::function<std::optional<std::string>(const std::string&)>& value_of,
    std::string* out) {
  size_t done = 0;
  for (size_t open = text.find(kOpen); open != std::string_view::npos;
       open = text.find(kOpen, done)) {
    out->append(text, done, open - done);
    done = open + kOpen.size();
    if (open > 0 && text[open - 1] == '$') {
      out->replace(out->size() - 1, 1, kOpen);
      continue;
    }
    const size_t close = std::min(text.find_first_not_of(kLetters, done), text.size());
    const std::string variable(text.substr(done, close - done));
    const bool closed = close < text.size() && text[close] == '}';
    const absl::StatusOr<std::string> value =
        closed ? ValueOf(variable, value_of) : absl::InvalidArgumentError("has no closing brace");
    if (!value.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("${", variable, closed ? "} " : " ", value.status().message()));
    }
    *out += *value;
    done = close + 1;
  }
  out->append(text, done);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ExpandVariables(
    const std::string& name, const std::string& text,
    const std::function<std::optional<std::string>(const std::string&)>& value_of) {
  std::string out;
  int line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view whole = std::string_view(text).substr(begin, end - begin);
    const size_t comment = CommentOf(whole);
    ++line;
    if (const absl::Status status = ExpandLine(whole.substr(0, comment), value_of, &out);
        !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ":", line, ": ", status.message()));
    }
    out += whole.substr(comment);
    begin = end;
  }
  return out;
}

std::optional<std::string> FromEnvironment(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace lockstep::config
