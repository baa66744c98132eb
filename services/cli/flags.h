#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace lockstep::cli {

// Words after the verb.
using Arguments = std::vector<std::string>;

// Whether a verb's status only carries its help text, as its message.
bool IsHelp(const absl::Status& status);

// The flags of one verb: --name=value, or --name alone for a switch. A flag's default is what its
// variable holds before Parse().
//
//   std::string target = "127.0.0.1:7100";
//   Flags flags("health", "Asks a process whether it is healthy.");
//   flags.Add("target", &target, "host:port to ask");
//   LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
class Flags {
 public:
  Flags(std::string verb, std::string summary)
      : verb_(std::move(verb)), summary_(std::move(summary)) {}

  // `value` outlives this object. Repeating a flag is an error, but for lists.
  void Add(const char* name, std::string* value, const char* help);
  void Add(const char* name, int64_t* value, const char* help);
  void Add(const char* name, double* value, const char* help);
  void Add(const char* name, bool* value, const char* help);
  void Add(const char* name, absl::Duration* value, const char* help);
  void Add(const char* name, std::optional<std::string>* value, const char* help);
  void Add(const char* name, std::optional<int64_t>* value, const char* help);
  void Add(const char* name, std::optional<uint64_t>* value, const char* help);
  void Add(const char* name, std::optional<float>* value, const char* help);
  // One element for each time that the flag is given.
  void Add(const char* name, std::vector<std::string>* value, const char* help);
  // As above, but Parse() fails when the flag is not given.
  void Require(const char* name, std::string* value, const char* help);
  void Require(const char* name, std::vector<std::string>* value, const char* help);

  // INVALID_ARGUMENT names the flag. With --help: a status that IsHelp() knows.
  absl::Status Parse(const Arguments& arguments);
  // INVALID_ARGUMENT names the first of `names` that was given; `why` not says the rest.
  absl::Status CheckNotGiven(const std::vector<const char*>& names, const char* why);
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string default_text;  // Empty: none to show.
    bool is_switch = false;
    bool is_list = false;
    bool required = false;
    // Reads the text; a status names what was expected.
    absl::AnyInvocable<absl::Status(absl::string_view)> read;
    bool given = false;
  };

  Flag& New(const char* name, const char* help);
  Flag* Find(absl::string_view name);

  const std::string verb_;
  const std::string summary_;
  std::vector<Flag> flags_;
};

}  // namespace lockstep::cli
