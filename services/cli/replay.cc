#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/cli/connect_flags.h"
#include "services/cli/record.h"
#include "services/cli/verbs.h"
#include "services/client/arrays.h"
#include "services/client/sample_bits.h"

namespace lockstep::cli {
namespace {

// Asks for one sample of a record alone: its prompt as ids and its own sub-seed decide everything.
v1::GenerateRequest RequestOf(const Record& record, const v1::Sample& sample) {
  v1::GenerateRequest request = record.request;
  request.clear_request_id();
  request.clear_n();
  request.clear_generated_ids();
  request.set_first_sample_index(sample.index());
  request.set_exact_seed(sample.sub_seed());
  *request.mutable_prompt_ids()->mutable_ids() =
      client::ToIdField(client::ReadIds(record.response.prompt_ids()));
  // Prompt logprobs are in the first sample of an answer only.
  if (sample.prompt_logprobs().raw().empty()) request.mutable_logprobs()->clear_prompt_from();
  return request;
}

}  // namespace

absl::Status RunReplay(const Arguments& arguments) {
  ConnectFlags connect;
  std::string path;
  Flags flags(
      "replay",
      "Runs each sample of a record again, alone, and compares ids, logprob bits and text.");
  connect.AddTo(&flags);
  flags.Require("record", &path, "file that lockstep generate --record wrote");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(const Record record, ReadRecord(path));

  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::RolloutClient cluster(reach);
  int differing = 0;
  for (const v1::Sample& expected : record.response.samples()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const v1::GenerateResponse answer,
                              cluster.Generate(RequestOf(record, expected)));
    if (answer.samples_size() != 1) return absl::InternalError("an answer without a sample");
    const v1::Sample& actual = answer.samples(0);
    const std::optional<std::string> difference = client::FirstDifference(expected, actual);
    const bool same_receipt = expected.receipt().digest() == actual.receipt().digest();
    std::printf("sample %lld: %s; receipt %s\n", static_cast<long long>(expected.index()),
                difference.has_value() ? difference->c_str() : "equal in every bit",
                same_receipt ? "equal" : "differs");
    if (difference.has_value() || !same_receipt) ++differing;
  }
  if (differing == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(differing, " of ", record.response.samples_size(), " samples differ"));
}

}  // namespace lockstep::cli
