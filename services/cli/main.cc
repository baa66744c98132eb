// The one binary of lockstep: a verb, then its flags.
#include <cstdio>
#include <iterator>
#include <string>

#include "absl/strings/str_format.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {
namespace {

std::string Usage() {
  std::string text =
      "lockstep VERB [--flag=value ...]\n\n"
      "Serves language-model rollouts whose bits depend on nothing but the weights, the request\n"
      "and its seed.\n\n";
  for (const Verb& verb : Verbs())
    absl::StrAppendFormat(&text, "  %-10s %s\n", verb.name, verb.summary);
  return text +
         "\nlockstep VERB --help shows the flags of a verb. Exit codes: 0 done, 1 failed, 2 when\n"
         "a flag, a file that it names or a value of a request is not what it should be.\n";
}

int Main(const Arguments& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "help") {
    std::fputs(Usage().c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? 2 : 0;
  }
  for (const Verb& verb : Verbs()) {
    if (words[0] != verb.name) continue;
    const absl::Status status = verb.run(Arguments(std::next(words.begin()), words.end()));
    if (status.ok()) return 0;
    const std::string message(status.message());
    if (IsHelp(status)) {
      std::fputs(message.c_str(), stdout);
      return 0;
    }
    std::fprintf(stderr, "lockstep %s: %s (%s)\n", verb.name, message.c_str(),
                 absl::StatusCodeToString(status.code()).c_str());
    return absl::IsInvalidArgument(status) ? 2 : 1;
  }
  std::fprintf(stderr, "lockstep: '%s' is no verb\n\n%s", words[0].c_str(), Usage().c_str());
  return 2;
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  const int code = lockstep::cli::Main(lockstep::cli::Arguments(argv + 1, argv + argc));
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  // An answer that was not written is no answer.
  std::fputs("lockstep: standard output could not be written\n", stderr);
  return code == 0 ? 1 : code;
}
