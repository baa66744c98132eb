#pragma once

#include <span>

#include "absl/status/status.h"
#include "services/cli/flags.h"

// One function for each verb of the binary; its name is the verb's. OK is exit code 0, and so
// is help text; INVALID_ARGUMENT is 2: what was asked cannot be, nothing was done. All else is 1.
namespace lockstep::cli {

// Roles: serve until SIGTERM or SIGINT, then drain.
absl::Status RunGateway(const Arguments& arguments);
absl::Status RunRouter(const Arguments& arguments);
absl::Status RunScheduler(const Arguments& arguments);
absl::Status RunWorker(const Arguments& arguments);

// A local cluster.
absl::Status RunUp(const Arguments& arguments);

// Clients of a running cluster.
absl::Status RunHealth(const Arguments& arguments);
absl::Status RunInfo(const Arguments& arguments);
absl::Status RunGenerate(const Arguments& arguments);
absl::Status RunScore(const Arguments& arguments);
absl::Status RunTokenize(const Arguments& arguments);
absl::Status RunReplay(const Arguments& arguments);
absl::Status RunWeights(const Arguments& arguments);
absl::Status RunCompare(const Arguments& arguments);
absl::Status RunVerify(const Arguments& arguments);
absl::Status RunBench(const Arguments& arguments);

// Without a cluster: arithmetic on a model, certificates of this machine's device.
absl::Status RunSize(const Arguments& arguments);
absl::Status RunCertify(const Arguments& arguments);

struct Verb {
  const char* name;
  absl::Status (*run)(const Arguments&);
  const char* summary;
};

// All of them, in the order of the binary's help.
std::span<const Verb> Verbs();

}  // namespace lockstep::cli
