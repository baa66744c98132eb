#include "services/cli/verbs.h"

namespace lockstep::cli {
namespace {

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

}  // namespace

std::span<const Verb> Verbs() { return kVerbs; }

}  // namespace lockstep::cli
