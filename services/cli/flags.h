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

// What a number or a duration may be, both ends included.
template <typename T>
struct Range {
  T least;
  T most;
};

// Waits that a flag takes: none at all is a mistake, and so is one that nobody sees the end of.
inline constexpr absl::Duration kWaitMin = absl::Milliseconds(1);
inline constexpr absl::Duration kWaitMax = absl::Hours(168);

// The flags of one verb: --name=value, or --name alone for a switch. A flag's default is what its
// variable holds before Parse().
//
//   std::string target = "127.0.0.1:7100";
//   Flags flags("example", "Shows how flags are declared.");
//   int64_t workers = 2;
//   flags.Add("target", &target, "host:port to ask");
//   flags.Add("workers", &workers, {1, 64}, "worker processes");
//   LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
class Flags {
 public:
  Flags(std::string verb, std::string summary)
      : verb_(std::move(verb)), summary_(std::move(summary)) {}

  // `value` outlives this object. Repeating a flag is an error, but for lists. A number has no
  // flag without its range, so that what no verb can work with ends here, by the flag's name.
  void Add(const char* name, std::string* value, const char* help);
  void Add(const char* name, bool* value, const char* help);
  void Add(const char* name, std::optional<std::string>* value, const char* help);
  void Add(const char* name, int64_t* value, Range<int64_t> range, const char* help);
  void Add(const char* name, absl::Duration* value, Range<absl::Duration> range, const char* help);
  void Add(const char* name, std::optional<int64_t>* value, Range<int64_t> range, const char* help);
  void Add(const char* name, std::optional<uint64_t>* value, Range<uint64_t> range,
           const char* help);
  void Add(const char* name, std::optional<float>* value, Range<float> range, const char* help);
  // All elements at once, divided by commas or spaces; the range is that of each.
  void Add(const char* name, std::vector<int64_t>* value, Range<int64_t> range, const char* help);
  void Add(const char* name, std::optional<std::vector<int64_t>>* value, Range<int64_t> range,
           const char* help);
  // One element for each time that the flag is given.
  void Add(const char* name, std::vector<std::string>* value, const char* help);
  // As above, but Parse() fails when the flag is not given.
  void Require(const char* name, std::string* value, const char* help);
  void Require(const char* name, std::vector<std::string>* value, const char* help);
  void Require(const char* name, std::vector<int64_t>* value, Range<int64_t> range,
               const char* help);

  // INVALID_ARGUMENT names the flag. With --help: a status that IsHelp() knows.
  absl::Status Parse(const Arguments& arguments);
  // INVALID_ARGUMENT names the first of `names` that was given; `why` not says the rest.
  absl::Status CheckNotGiven(const std::vector<const char*>& names, const char* why);
  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string help;
    std::string range_text;    // Empty: no number.
    std::string default_text;  // Empty: none to show.
    bool is_switch = false;
    bool is_list = false;
    bool required = false;
    // Reads the text; a status quotes it and says what was expected.
    absl::AnyInvocable<absl::Status(absl::string_view)> read;
    bool given = false;
  };

  Flag& New(const char* name, const char* help);
  template <typename T, typename Number>
  Flag& NewNumber(const char* name, T* value, Range<Number> range, const char* help);
  Flag* Find(absl::string_view name);

  const std::string verb_;
  const std::string summary_;
  std::vector<Flag> flags_;
};

}  // namespace lockstep::cli
