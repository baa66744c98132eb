#include "services/cli/flags.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::cli {
namespace {

constexpr char kHelpUrl[] = "lockstep/help";

absl::Status Expected(const char* what) { return absl::InvalidArgumentError(what); }

absl::Status ReadValue(absl::string_view text, std::string* value) {
  *value = std::string(text);
  return absl::OkStatus();
}
absl::Status ReadValue(absl::string_view text, int64_t* value) {
  return absl::SimpleAtoi(text, value) ? absl::OkStatus() : Expected("a whole number");
}
absl::Status ReadValue(absl::string_view text, uint64_t* value) {
  return absl::SimpleAtoi(text, value) ? absl::OkStatus() : Expected("a whole number from 0 on");
}
absl::Status ReadValue(absl::string_view text, double* value) {
  return absl::SimpleAtod(text, value) ? absl::OkStatus() : Expected("a number");
}
absl::Status ReadValue(absl::string_view text, float* value) {
  return absl::SimpleAtof(text, value) ? absl::OkStatus() : Expected("a number");
}
absl::Status ReadValue(absl::string_view text, absl::Duration* value) {
  return absl::ParseDuration(text, value) ? absl::OkStatus() : Expected("a duration such as 30s");
}
template <typename T>
absl::Status ReadValue(absl::string_view text, std::optional<T>* value) {
  return ReadValue(text, &value->emplace());
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

void Flags::Add(const char* name, std::string* value, const char* help) {
  Flag& flag = New(name, help);
  flag.default_text = *value;
  flag.read = [value](absl::string_view text) { return ReadValue(text, value); };
}

void Flags::Require(const char* name, std::string* value, const char* help) {
  Add(name, value, help);
  flags_.back().required = true;
}

void Flags::Require(const char* name, std::vector<std::string>* value, const char* help) {
  Add(name, value, help);
  flags_.back().required = true;
}

void Flags::Add(const char* name, int64_t* value, const char* help) {
  Flag& flag = New(name, help);
  flag.default_text = absl::StrCat(*value);
  flag.read = [value](absl::string_view text) { return ReadValue(text, value); };
}

void Flags::Add(const char* name, double* value, const char* help) {
  Flag& flag = New(name, help);
  flag.default_text = absl::StrCat(*value);
  flag.read = [value](absl::string_view text) { return ReadValue(text, value); };
}

void Flags::Add(const char* name, absl::Duration* value, const char* help) {
  Flag& flag = New(name, help);
  flag.default_text = absl::FormatDuration(*value);
  flag.read = [value](absl::string_view text) { return ReadValue(text, value); };
}

void Flags::Add(const char* name, bool* value, const char* help) {
  Flag& flag = New(name, help);
  flag.is_switch = true;
  flag.read = [value](absl::string_view) {
    *value = true;
    return absl::OkStatus();
  };
}

void Flags::Add(const char* name, std::optional<std::string>* value, const char* help) {
  New(name, help).read = [value](absl::string_view text) { return ReadValue(text, value); };
}
void Flags::Add(const char* name, std::optional<int64_t>* value, const char* help) {
  New(name, help).read = [value](absl::string_view text) { return ReadValue(text, value); };
}
void Flags::Add(const char* name, std::optional<uint64_t>* value, const char* help) {
  New(name, help).read = [value](absl::string_view text) { return ReadValue(text, value); };
}
void Flags::Add(const char* name, std::optional<float>* value, const char* help) {
  New(name, help).read = [value](absl::string_view text) { return ReadValue(text, value); };
}

void Flags::Add(const char* name, std::vector<std::string>* value, const char* help) {
  Flag& flag = New(name, help);
  flag.is_list = true;
  flag.read = [value](absl::string_view text) {
    value->emplace_back(text);
    return absl::OkStatus();
  };
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
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": '", text, "' is not ", status.message()));
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
    if (flag.required) absl::StrAppend(&text, " (required)");
    if (flag.is_list) absl::StrAppend(&text, " (may be repeated)");
    if (!flag.default_text.empty()) absl::StrAppend(&text, " (default ", flag.default_text, ")");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace lockstep::cli
