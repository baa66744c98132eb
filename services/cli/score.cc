#include <algorithm>
#include <cstdio>

#include "common/base/status_macros.h"
#include "services/cli/connect_flags.h"
#include "services/cli/generate_flags.h"
#include "services/cli/print.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {

absl::Status RunScore(const Arguments& arguments) {
  ConnectFlags connect;
  std::vector<int64_t> ids;
  std::optional<int64_t> from;
  std::optional<float> temperature;
  Flags flags("score", "Prints the logprobs of given ids, without generating.");
  connect.AddTo(&flags);
  flags.Require("ids", &ids, kTokenIds, "token ids, divided by commas");
  flags.Add("from", &from, {1, kTokensMax}, "first position to score");
  flags.Add("temperature", &temperature, {0, 1e6f}, "for scaled logprobs");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));

  v1::ScoreRequest request;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  if (from.has_value()) request.set_from(*from);
  if (temperature.has_value()) request.set_temperature(*temperature);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::RolloutClient cluster(reach);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::ScoreResponse response, cluster.Score(request));
  if (response.logprobs().raw().empty()) {
    return absl::FailedPreconditionError("no position was scored");
  }
  std::printf("raw        %s\nscaled     %s\nreceipt    %s\n",
              FloatsText(response.logprobs().raw()).c_str(),
              FloatsText(response.logprobs().scaled()).c_str(),
              response.receipt().digest().c_str());
  return absl::OkStatus();
}

absl::Status RunTokenize(const Arguments& arguments) {
  ConnectFlags connect;
  std::string text;
  bool special = false;
  Flags flags("tokenize", "Turns text into the cluster's token ids.");
  connect.AddTo(&flags);
  flags.Require("text", &text, "text to turn into ids");
  flags.Add("special", &special, "add the tokenizer's own prefix and suffix");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(special);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::RolloutClient cluster(reach);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::TokenizeResponse response, cluster.Tokenize(request));
  std::string ids = IdsText(response.ids());
  std::replace(ids.begin(), ids.end(), ' ', ',');
  std::printf("%s\n", ids.c_str());
  return absl::OkStatus();
}

}  // namespace lockstep::cli
