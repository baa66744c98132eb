#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/cluster/cluster_layout.h"
#include "services/cli/connect_flags.h"
#include "services/cli/files.h"
#include "services/cli/generate_flags.h"
#include "services/cli/verbs.h"
#include "services/cli/verify/modes.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kTrialsMax = 1'000'000;

struct Mode {
  const char* name;
  absl::Status (*verify)(Subject*, const VerifyOptions&);
  // Whether `all` includes it; null is always.
  bool (*applies)(const Subject&) = nullptr;
  // What can be seen to be missing before any mode runs; null is nothing.
  absl::Status (*check)(const Subject&, const VerifyOptions&) = nullptr;
};

constexpr Mode kModes[] = {
    {"single", VerifySingle},
    {"mixed", VerifyMixed},
    {"prefix", VerifyPrefix},
    {"radix_cache", VerifyRadixCache},
    {"prefill_vs_decode", VerifyPrefillVsDecode},
    {"neighbours", VerifyNeighbours},
    {"long", VerifyLong},
    {"preemption", VerifyPreemption},
    {"tp", VerifyTp, [](const Subject& subject) { return subject.workers_by_ranks().size() > 1; }},
    {"failover", VerifyFailover, nullptr, CheckFailover},
};

// Empty for a target without a port number.
std::string RunDirOf(const std::string& target) {
  int port = 0;
  const size_t colon = target.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(target.substr(colon + 1), &port)) return "";
  return DefaultRunDir(port);
}

// `wanted` is "all" or names divided by commas; the modes run in their own order.
absl::StatusOr<std::vector<Mode>> ModesOf(const std::string& wanted) {
  if (wanted == "all") return std::vector<Mode>(std::begin(kModes), std::end(kModes));
  std::set<std::string> names = absl::StrSplit(wanted, ',');
  std::vector<Mode> modes;
  for (const Mode& mode : kModes) {
    if (names.erase(mode.name) > 0) modes.push_back(mode);
  }
  if (names.empty()) return modes;
  return absl::InvalidArgumentError(absl::StrCat(
      "--mode: '", *names.begin(), "' is none of all, ",
      absl::StrJoin(kModes, ", ",
                    [](std::string* out, const Mode& mode) { absl::StrAppend(out, mode.name); })));
}

absl::Status RunModes(const std::vector<Mode>& modes, Subject* subject,
                      const VerifyOptions& options) {
  std::vector<std::string> failures;
  const size_t ran = modes.size();
  for (const Mode& mode : modes) {
    const absl::Status status = mode.verify(subject, options);
    if (!status.ok()) failures.push_back(std::string(status.message()));
  }
  if (failures.empty()) {
    std::printf("%zu of %zu modes held\n", ran, ran);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      failures.size(), " of ", ran, " modes failed:\n  ", absl::StrJoin(failures, "\n  ")));
}

}  // namespace

absl::Status RunVerify(const Arguments& arguments) {
  ConnectFlags connect;
  VerifyOptions options;
  std::string mode = "all";
  std::string out;
  std::string metrics_token_file;
  Flags flags(
      "verify",
      "Proves on a running cluster that answers depend on nothing but their own input:\n"
      "ids, logprob bits and text of every sample equal those of a run alone, without cache.");
  connect.AddTo(&flags);
  flags.Add("mode", &mode,
            "single, mixed, prefix, radix_cache, prefill_vs_decode, neighbours, long, "
            "preemption, tp (for a cluster of different tensor_parallel), failover, several of "
            "them divided by commas, or all");
  flags.Add("trials", &options.trials, {1, kTrialsMax}, "samples of each prompt");
  flags.Add("long_prompt_tokens", &options.long_prompt_tokens, {1, kTokensMax},
            "prompt of mode long");
  flags.Add("long_new_tokens", &options.long_new_tokens, {1, kTokensMax}, "answer of mode long");
  flags.Add("out", &out, "file for the result as JSON");
  flags.Add("metrics_token_file", &metrics_token_file,
            "file with a scraper's bearer token, where workers' metrics need one");
  flags.Add("run_dir", &options.run_dir,
            "directory of lockstep up, for failover; by default that of the target's port");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Mode> modes, ModesOf(mode));
  if (!out.empty()) LOCKSTEP_RETURN_IF_ERROR(CheckWritable(out));
  if (options.run_dir.empty()) options.run_dir = RunDirOf(connect.target);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::MetricsAccess access = {.authorities = connect.authorities, .peer_name = "worker"};
  if (!metrics_token_file.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(access.bearer_token, ReadToken(metrics_token_file));
  }
  client::RolloutClient cluster(reach);
  LOCKSTEP_ASSIGN_OR_RETURN(Subject subject, Subject::Connect(&cluster, access));
  if (mode == "all") {
    std::erase_if(modes,
                  [&](const Mode& m) { return m.applies != nullptr && !m.applies(subject); });
  }
  for (const Mode& m : modes) {
    if (m.check != nullptr) LOCKSTEP_RETURN_IF_ERROR(m.check(subject, options));
  }
  const absl::Status held = RunModes(modes, &subject, options);
  if (out.empty()) return held;
  nlohmann::ordered_json report = NewReport("verify", mode, arguments);
  report["model"] = subject.info().model();
  report["backend"] = subject.info().fingerprint().backend();
  report["workers"] = subject.info().workers_size();
  report["held"] = held.ok();
  report["modes"] = subject.records();
  LOCKSTEP_RETURN_IF_ERROR(WriteReport(out, report));
  return held;
}

}  // namespace lockstep::cli
