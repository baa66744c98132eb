#include "services/cli/flags.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace lockstep::cli {
namespace {

constexpr char kHelpUrl[] = "lockstep/help";

std::string Text(int64_t value) { return absl::StrCat(value); }
std::string Text(uint64_t value) { return absl::StrCat(value); }
std::string Text(float value) { return absl::StrCat(value); }
std::string Text(absl::Duration value) { return absl::FormatDuration(value); }
std::string Text(const std::vector<int64_t>& value) { return absl::StrJoin(value, ","); }

template <typename T>
std::string Text(const Range<T>& range) {
  return absl::StrCat("in [", Text(range.least), ", ", Text(range.most), "]");
}

const char* KindOf(int64_t) { return "a whole number "; }
const char* KindOf(uint64_t) { return "a whole number "; }
const char* KindOf(float) { return "a number "; }
const char* KindOf(absl::Duration) { return "a duration such as 30s, "; }

bool ReadNumber(absl::string_view text, int64_t* value) { return absl::SimpleAtoi(text, value); }
bool ReadNumber(absl::string_view text, uint64_t* value) { return absl::SimpleAtoi(text, value); }
bool ReadNumber(absl::string_view text, float* value) { return absl::SimpleAtof(text, value); }
bool ReadNumber(absl::string_view text, absl::Duration* value) {
  return absl::ParseDuration(text, value);
}

template <typename T>
absl::Status ReadValue(absl::string_view text, const Range<T>& range, T* value) {
  T number;
  // Written so that what is no number fails.
  if (ReadNumber(text, &number) && number >= range.least && number <= range.most) {
    *value = number;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ", KindOf(T()), Text(range)));
}
absl::Status ReadValue(absl::string_view text, const Range<int64_t>& range,
                       std::vector<int64_t>* values) {
  values->clear();
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(", "), absl::SkipEmpty());
  // What a shell makes of a variable that is not set.
  if (words.empty()) return ReadValue(text, range, &values->emplace_back());
  for (const absl::string_view word : words) {
    LOCKSTEP_RETURN_IF_ERROR(ReadValue(word, range, &values->emplace_back()));
  }
  return absl::OkStatus();
}
template <typename T, typename Number>
absl::Status ReadValue(absl::string_view text, const Range<Number>& range,
                       std::optional<T>* value) {
  return ReadValue(text, range, &value->emplace());
}

template <typename T>
std::string DefaultText(const T& value) {
  return Text(value);
}
template <typename T>
std::string DefaultText(const std::optional<T>&) {
  return "";
}

}  // namespace

bool IsHelp(const absl::Status& status) { return status.GetPayload(kHelpUrl).has_value(); }

Flags::Flag& Flags::New(const char* name, const char* help) {
  Flag flag;
  flag.name = name;
  flag.help = help;
  flags_.push_back(std::move(flag));
  return flags_.back();
}

template <typename T, typename Number>
Flags::Flag& Flags::NewNumber(const char* name, T* value, Range<Number> range, const char* help) {
  Flag& flag = New(name, help);
  flag.range_text = Text(range);
  flag.default_text = DefaultText(*value);
  flag.read = [value, range](absl::string_view text) { return ReadValue(text, range, value); };
  return flag;
}

void Flags::Add(const char* name, int64_t* value, Range<int64_t> range, const char* help) {
  NewNumber(name, value, range, help);
}
void Flags::Add(const char* name, absl::Duration* value, Range<absl::Duration> range,
                const char* help) {
  NewNumber(name, value, range, help);
}
void Flags::Add(const char* name, std::optional<int64_t>* value, Range<int64_t> range,
                const char* help) {
  NewNumber(name, value, range, help);
}
void Flags::Add(const char* name, std::optional<uint64_t>* value, Range<uint64_t> range,
                const char* help) {
  NewNumber(name, value, range, help);
}
void Flags::Add(const char* name, std::optional<float>* value, Range<float> range,
                const char* help) {
  NewNumber(name, value, range, help);
}
void Flags::Add(const char* name, std::vector<int64_t>* value, Range<int64_t> range,
                const char* help) {
  NewNumber(name, value, range, help);
}
void Flags::Add(const char* name, std::optional<std::vector<int64_t>>* value, Range<int64_t> range,
                const char* help) {
  NewNumber(name, value, range, help);
}

void Flags::Add(const char* name, std::string* value, const char* help) {
  Flag& flag = New(name, help);
  flag.default_text = *value;
  flag.read = [value](absl::string_view text) {
    *value = std::string(text);
    return absl::OkStatus();
  };
}

void Flags::Add(const char* name, std::optional<std::string>* value, const char* help) {
  New(name, help).read = [value](absl::string_view text) {
    *value = std::string(text);
    return absl::OkStatus();
  };
}

void Flags::Add(const char* name, bool* value, const char* help) {
  Flag& flag = New(name, help);
  flag.is_switch = true;
  flag.read = [value](absl::string_view) {
    *value = true;
    return absl::OkStatus();
  };
}

void Flags::Add(const char* name, std::vector<std::string>* value, const char* help) {
  Flag& flag = New(name, help);
  flag.is_list = true;
  flag.read = [value](absl::string_view text) {
    value->emplace_back(text);
    return absl::OkStatus();
  };
}

void Flags::Require(const char* name, std::string* value, const char* help) {
  Add(name, value, help);
  flags_.back().required = true;
}

void Flags::Require(const char* name, std::vector<std::string>* value, const char* help) {
  Add(name, value, help);
  flags_.back().required = true;
}

void Flags::Require(const char* name, std::vector<int64_t>* value, Range<int64_t> range,
                    const char* help) {
  NewNumber(name, value, range, help).required = true;
}

Flags::Flag* Flags::Find(absl::string_view name) {
  const auto it = std::find_if(flags_.begin(), flags_.end(),
                               [name](const Flag& flag) { return flag.name == name; });
  return it == flags_.end() ? nullptr : &*it;
}

absl::Status Flags::Parse(const Arguments& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--help") {
      // No code alone says it: each may be a server's answer, and a failure then.
      absl::Status help = absl::CancelledError(Help());
      help.SetPayload(kHelpUrl, absl::Cord());
      return help;
    }
    if (argument.compare(0, 2, "--") != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", argument, "': expected --flag=value; see lockstep ", verb_, " --help"));
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    Flag* flag = Find(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": unknown; see lockstep ", verb_, " --help"));
    }
    if (flag->is_switch != (equals == std::string::npos)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, flag->is_switch ? ": takes no value" : ": needs =value"));
    }
    if (flag->given && !flag->is_list) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": given twice"));
    }
    flag->given = true;
    const std::string text = flag->is_switch ? "" : argument.substr(equals + 1);
    if (const absl::Status status = flag->read(text); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", status.message()));
    }
  }
  for (const Flag& flag : flags_) {
    if (flag.required && !flag.given) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag.name, ": required; see lockstep ", verb_, " --help"));
    }
  }
  return absl::OkStatus();
}

absl::Status Flags::CheckNotGiven(const std::vector<const char*>& names, const char* why) {
  for (const char* name : names) {
    if (const Flag* flag = Find(name); flag != nullptr && flag->given) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", why));
    }
  }
  return absl::OkStatus();
}

std::string Flags::Help() const {
  std::string text = absl::StrCat("lockstep ", verb_, "\n", summary_, "\n\n");
  for (const Flag& flag : flags_) {
    absl::StrAppend(&text, "  --", flag.name, flag.is_switch ? "" : "=", "\n      ", flag.help);
    std::vector<std::string> facts;
    if (flag.required) facts.push_back("required");
    if (flag.is_list) facts.push_back("may be repeated");
    if (!flag.range_text.empty()) facts.push_back(flag.range_text);
    if (!flag.default_text.empty()) facts.push_back(absl::StrCat("default ", flag.default_text));
    if (!facts.empty()) absl::StrAppend(&text, " (", absl::StrJoin(facts, ", "), ")");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace lockstep::cli
