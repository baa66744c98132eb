// The one binary of lockstep: a verb, then its flags.
#include <cstdio>
#include <iterator>
#include <string>

#include "absl/strings/str_format.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {
namespace {

struct Verb {
  const char* name;
  absl::Status (*run)(const Arguments&);
  const char* summary;
};

constexpr Verb kVerbs[] = {
    {"up", RunUp, "run a local cluster of real processes"},
    {"gateway", RunGateway, "serve the trainer's API"},
    {"router", RunRouter, "assign requests to workers"},
    {"scheduler", RunScheduler, "keep the registry, admit, plan"},
    {"worker", RunWorker, "run a model"},
    {"health", RunHealth, "ask a process whether it is live, started, ready"},
    {"info", RunInfo, "show a cluster's contract, model and workers"},
    {"generate", RunGenerate, "continue a prompt; print text, ids and logprobs"},
    {"score", RunScore, "print the logprobs of given ids"},
    {"tokenize", RunTokenize, "turn text into ids"},
    {"replay", RunReplay, "run a recorded answer again and compare every bit"},
    {"weights", RunWeights, "show version and digest of the weights in use"},
    {"verify", RunVerify, "prove that answers depend on nothing but their own input"},
    {"compare", RunCompare, "say how far two clusters of different contracts agree"},
    {"certify", RunCertify, "find the kernels of a device that give the contract's bits"},
    {"bench", RunBench, "drive load and write the result as JSON"},
    {"size", RunSize, "say how many tokens and sequences fit into a KV budget"},
};

std::string Usage() {
  std::string text =
      "lockstep VERB [--flag=value ...]\n\n"
      "Serves language-model rollouts whose bits depend on nothing but the weights, the request\n"
      "and its seed.\n\n";
  for (const Verb& verb : kVerbs)
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
  for (const Verb& verb : kVerbs) {
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
  return lockstep::cli::Main(lockstep::cli::Arguments(argv + 1, argv + argc));
}
