#include "services/text/pattern_translation.h"

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::text {
namespace {

constexpr int kRepeatMax = 1000;
constexpr size_t kPatternBytesMax = 16384;

// General categories mean the same in both libraries. Scripts do not: PCRE2 reads a script's name
// as its Script_Extensions.
constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};

constexpr std::array<std::string_view, 7> kGroupPrefixes = {"(?:",  "(?=",  "(?!", "(?>",
                                                            "(?<=", "(?<!", "(?i:"};

bool Contains(std::string_view characters, char c) {
  return characters.find(c) != std::string_view::npos;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      LOCKSTEP_RETURN_IF_ERROR(Step());
    }
    return std::move(out_);
  }

 private:
  absl::Status Step() {
    switch (rest_[0]) {
      case '\\':
        return Escape();
      case '[':
        return Class();
      case '(':
        return Group();
      case '{':
        return Repeat();
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  void Copy(size_t size_bytes) {
    out_.append(rest_.substr(0, size_bytes));
    rest_.remove_prefix(size_bytes);
  }
  void Replace(size_t size_bytes, std::string_view by) {
    out_.append(by);
    rest_.remove_prefix(size_bytes);
  }
  absl::Status Refuse(size_t size_bytes, std::string_view why) const {
    return absl::InvalidArgumentError("\"" + std::string(rest_.substr(0, size_bytes)) + "\" " +
                                      std::string(why));
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return Refuse(1, "ends the pattern");
    const char next = rest_[1];
    if (Contains("nrtfae", next) || !absl::ascii_isalnum(next)) {
      Copy(2);
    } else if (next == 's') {
      // PCRE2's own \s also takes U+180E.
      Replace(2, "\\p{White_Space}");
    } else if (next == 'S') {
      Replace(2, "\\P{White_Space}");
    } else if (next == 'd') {
      Replace(2, "\\p{Nd}");
    } else if (next == 'D') {
      Replace(2, "\\P{Nd}");
    } else if (next == 'v') {
      Replace(2, "\\x{0B}");
    } else if (next == 'p' || next == 'P') {
      return Property();
    } else if (next == 'u') {
      return CodePoint();
    } else {
      return Refuse(2, "is not supported");
    }
    return absl::OkStatus();
  }

  absl::Status Property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || end == std::string_view::npos) {
      return Refuse(2, "needs a property in braces");
    }
    std::string_view name = rest_.substr(3, end - 3);
    if (!name.empty() && name[0] == '^') name.remove_prefix(1);
    for (const std::string_view category : kCategories) {
      if (name == category) {
        Copy(end + 1);
        return absl::OkStatus();
      }
    }
    return Refuse(end + 1, "is not a general category");
  }

  absl::Status CodePoint() {
    const std::string_view digits = rest_.size() < 6 ? "" : rest_.substr(2, 4);
    for (const char c : digits) {
      if (!absl::ascii_isxdigit(c)) return Refuse(6, "needs four hex digits");
    }
    if (digits.empty()) return Refuse(rest_.size(), "needs four hex digits");
    Replace(6, "\\x{" + std::string(digits) + "}");
    return absl::OkStatus();
  }

  // Nested sets and intersections exist in Oniguruma only.
  absl::Status Class() {
    Copy(1);
    if (!rest_.empty() && rest_[0] == '^') Copy(1);
    if (!rest_.empty() && rest_[0] == ']') return Refuse(1, "at the start of a class");
    while (!rest_.empty() && rest_[0] != ']') {
      if (rest_[0] == '[') return Refuse(1, "inside a class is not supported");
      if (rest_.substr(0, 2) == "&&") return Refuse(2, "inside a class is not supported");
      if (rest_[0] == '\\') {
        LOCKSTEP_RETURN_IF_ERROR(Escape());
      } else {
        Copy(1);
      }
    }
    if (rest_.empty()) return absl::InvalidArgumentError("a class is not closed");
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Group() {
    for (const std::string_view prefix : kGroupPrefixes) {
      if (rest_.substr(0, prefix.size()) == prefix) {
        Copy(prefix.size());
        return absl::OkStatus();
      }
    }
    const std::string_view two = rest_.substr(0, 2);
    if (two == "(?" || two == "(*") return Refuse(4, "is not supported");
    Replace(1, "(?:");
    return absl::OkStatus();
  }

  // {n}, {n,} and {n,m}. A mark behind the brace ("{2}?", "{2}+") means different things.
  absl::Status Repeat() {
    const size_t end = rest_.find('}');
    if (end == std::string_view::npos) return Refuse(1, "is not a repetition");
    const std::string_view body = rest_.substr(1, end - 1);
    const size_t comma = body.find(',');
    LOCKSTEP_RETURN_IF_ERROR(RepeatCount(body.substr(0, comma)));
    if (comma != std::string_view::npos && comma + 1 < body.size()) {
      LOCKSTEP_RETURN_IF_ERROR(RepeatCount(body.substr(comma + 1)));
    }
    Copy(end + 1);
    if (!rest_.empty() && Contains("?+*", rest_[0])) return Refuse(1, "behind a {} repetition");
    return absl::OkStatus();
  }

  absl::Status RepeatCount(std::string_view digits) const {
    int count = 0;
    const bool is_number = !digits.empty() && absl::ascii_isdigit(digits[0]) &&
                           absl::SimpleAtoi(std::string(digits), &count);
    if (is_number && count <= kRepeatMax) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("a repetition must count from 0 to ", kRepeatMax));
  }

  std::string_view rest_;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", pattern.size(), " bytes, at most ", kPatternBytesMax));
  }
  return Translator(pattern).Run();
}

std::string EscapePattern(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) escaped.push_back('\\');
    escaped.push_back(c);
  }
  return escaped;
}

}  // namespace lockstep::text
