#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/cli/connect_flags.h"
#include "services/cli/record.h"
#include "services/cli/replay_sample.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {
absl::Status RunReplay(const Arguments& arguments) {
  ConnectFlags connect;
  std::string path;
  Flags flags(
      "replay",
      "Runs each sample of a record again, alone, and compares ids, logprob bits and text; of one\n"
      "that was cut short, what there is of it.");
  connect.AddTo(&flags);
  flags.Require("record", &path, "file that lockstep generate --record wrote");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(const Record record, ReadRecord(path));

  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::RolloutClient cluster(reach);
  int differing = 0;
  int empty = 0;
  for (const v1::Sample& expected : record.response.samples()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Replayed replayed,
        CompareReplay(expected, cluster.Generate(ReplayRequest(record, expected))));
    std::printf("sample %lld: %s\n", static_cast<long long>(expected.index()),
                replayed.Text().c_str());
    if (replayed.held()) continue;
    ++(replayed.difference.has_value() || !replayed.same_receipt ? differing : empty);
  }
  const int samples = record.response.samples_size();
  if (differing > 0) {
    return absl::DataLossError(absl::StrCat(differing, " of ", samples, " samples differ"));
  }
  if (empty == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(empty, " of ", samples, " samples hold nothing to compare"));
}

}  // namespace lockstep::cli
