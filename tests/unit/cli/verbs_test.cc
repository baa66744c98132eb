// The command line of every verb, without doing what the verb does: a flag that nobody knows comes
// last, and ends what has passed the others.
#include "services/cli/verbs.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One flag, as the help text shows it.
struct Shown {
  std::string name;
  std::string limits;  // "[1, 64]"; empty for what is no number.
};

std::vector<Shown> FlagsOf(const Verb& verb) {
  std::vector<Shown> flags;
  const std::string help(verb.run({"--help"}).message());
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(help, '\n'))) {
    if (absl::StartsWith(line, "  --")) {
      flags.push_back({.name = line.substr(4, line.find('=') - 4), .limits = ""});
    } else if (const size_t begin = line.rfind("in ["); begin != std::string::npos) {
      flags.back().limits = line.substr(begin + 3, line.find(']', begin) - begin - 2);
    }
  }
  return flags;
}

// Whether a whole number is within limits of whole numbers; both ends fit a uint64 or an int64.
bool Within(const std::string& limits, const std::string& value) {
  const std::vector<std::string> ends =
      absl::StrSplit(limits.substr(1, limits.size() - 2), absl::ByString(", "));
  const auto wide = [](const std::string& text) {
    double number = 0;
    EXPECT_TRUE(absl::SimpleAtod(text, &number)) << text;
    return number;
  };
  return wide(value) >= wide(ends[0]) && wide(value) <= wide(ends[1]);
}

std::string ErrorOf(const Verb& verb, const std::string& argument) {
  const absl::Status status = verb.run({argument, "--no_such_flag"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << verb.name << " " << argument;
  return std::string(status.message());
}

TEST(VerbsTest, EveryNumberHasLimitsAndNothingBeyondThemIsTaken) {
  int numbers = 0;
  for (const Verb& verb : Verbs()) {
    for (const auto& [name, limits] : FlagsOf(verb)) {
      if (limits.empty()) continue;
      ++numbers;
      for (const char* value : {"0", "-1", "9223372036854775807", "-9223372036854775808",
                                "99999999999999999999", "many", "nan", "inf", ""}) {
        // Without a unit only 0 is a duration, and that is no wait.
        const bool is_duration = absl::EndsWith(limits, "h]");
        int64_t number = 0;
        const bool is_number = absl::SimpleAtoi(value, &number);
        const std::string error = ErrorOf(verb, absl::StrCat("--", name, "=", value));
        if (!is_duration && is_number && Within(limits, value)) {
          EXPECT_THAT(error, StartsWith("--no_such_flag: ")) << verb.name << " --" << name;
        } else {
          EXPECT_THAT(error, AllOf(StartsWith(absl::StrCat("--", name, ": '", value, "' is not ")),
                                   HasSubstr(limits)))
              << verb.name;
        }
      }
    }
  }
  EXPECT_GE(numbers, 50);
}

TEST(VerbsTest, WhatDecidesSizeOrWorkIsANumber) {
  for (const auto& [verb_name, flag_names] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"up",
            {"workers", "port", "kv_mib", "threads", "chunk_tokens", "reduction_segments",
             "tensor_parallel", "start_timeout"}},
           {"bench",
            {"calls", "streams", "requests", "prompt_tokens", "new_tokens", "repeats", "timeout"}},
           {"size", {"kv_mib", "tokens", "tensor_parallel"}},
           {"verify", {"trials", "long_prompt_tokens", "long_new_tokens", "timeout"}},
           {"compare", {"new_tokens", "timeout"}},
           {"certify", {"reduction_segments", "chunk_tokens", "sequences_max"}}}) {
    for (const Verb& verb : Verbs()) {
      if (verb_name != verb.name) continue;
      std::vector<std::string> numbers;
      for (const Shown& flag : FlagsOf(verb)) {
        if (!flag.limits.empty()) numbers.push_back(flag.name);
      }
      for (const std::string& name : flag_names) EXPECT_THAT(numbers, Contains(name)) << verb_name;
    }
  }
}

}  // namespace
}  // namespace lockstep::cli
