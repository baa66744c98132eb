#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/connect_flags.h"
#include "services/cli/files.h"
#include "services/cli/generate_flags.h"
#include "services/cli/sample_end.h"
#include "services/cli/verbs.h"
#include "services/client/arrays.h"
#include "services/client/generate_batch.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kInFlight = 64;

// How often two clusters would choose the same greedy id after the same text.
struct Agreement {
  int64_t positions = 0;
  int64_t equal = 0;
  // Where they would not: how much more probable the other cluster finds its own choice than its
  // next one, in logprob. Near 0 is a tie that any rounding decides.
  float lead_max = 0;

  double share() const {
    return positions == 0 ? 0 : static_cast<double>(equal) / static_cast<double>(positions);
  }
  Json ToJson() const {
    return {{"positions", positions}, {"equal", equal}, {"lead_where_unequal_max", lead_max}};
  }
};

// Of prompts, which are given, and of answers, where greedy ids are what a caller gets.
struct Result {
  Agreement prompts;
  Agreement answers;
  float logprob_difference_max = 0;
};

v1::GenerateRequest GreedyRequest(const std::string& prompt, int64_t new_tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text(prompt);
  request.set_exact_seed(1);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_new_tokens(new_tokens);
  return request;
}

// Whole ones, with a sample and a prompt each.
absl::StatusOr<std::vector<v1::GenerateResponse>> Answers(
    const client::RolloutClient& cluster, const std::vector<v1::GenerateRequest>& requests) {
  const auto batch = client::GenerateBatch::Start(cluster, requests, {.in_flight_max = kInFlight});
  std::vector<v1::GenerateResponse> answers;
  for (absl::StatusOr<v1::GenerateResponse>& answer : batch->Wait()) {
    LOCKSTEP_RETURN_IF_ERROR(WholeSample(answer).status());
    if (answer->prompt_ids().empty()) return absl::InternalError("an answer without its prompt");
    answers.push_back(*std::move(answer));
  }
  return answers;
}

// Teacher forced: both score the first cluster's whole text, and tell their most probable ids at
// each of its positions.
absl::Status Compare(client::RolloutClient* one, client::RolloutClient* other,
                     const v1::GenerateResponse& text, Result* result) {
  v1::ScoreRequest request;
  for (const std::string* ids : {&text.prompt_ids(), &text.samples(0).token_ids()}) {
    for (const uint32_t id : client::ReadIds(*ids)) request.add_ids(id);
  }
  request.set_top_count(2);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::ScoreResponse mine, one->Score(request));
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::ScoreResponse theirs, other->Score(request));
  const std::vector<uint32_t> my_ids = client::ReadIds(mine.logprobs().top_ids());
  const std::vector<uint32_t> their_ids = client::ReadIds(theirs.logprobs().top_ids());
  const std::vector<float> their_top = client::ReadFloats(theirs.logprobs().top_logprobs());
  const std::vector<float> my_raw = client::ReadFloats(mine.logprobs().raw());
  const std::vector<float> their_raw = client::ReadFloats(theirs.logprobs().raw());
  const size_t positions = static_cast<size_t>(request.ids_size()) - 1;
  for (const size_t count : {my_ids.size() / 2, their_ids.size() / 2, their_top.size() / 2,
                             my_raw.size(), their_raw.size()}) {
    if (count != positions) return absl::InternalError("scores of other positions than asked for");
  }
  const size_t prompt_positions = client::ReadIds(text.prompt_ids()).size() - 1;
  for (size_t i = 0; i < positions; ++i) {
    Agreement& part = i < prompt_positions ? result->prompts : result->answers;
    ++part.positions;
    result->logprob_difference_max =
        std::max(result->logprob_difference_max, std::fabs(my_raw[i] - their_raw[i]));
    if (my_ids[2 * i] == their_ids[2 * i]) {
      ++part.equal;
    } else {
      part.lead_max = std::max(part.lead_max, their_top[2 * i] - their_top[2 * i + 1]);
    }
  }
  return absl::OkStatus();
}

void Print(const char* what, const Agreement& agreement) {
  std::printf("greedy ids equal at %lld of %lld positions of %s (%.4f %%)",
              static_cast<long long>(agreement.equal), static_cast<long long>(agreement.positions),
              what, 100 * agreement.share());
  if (agreement.equal < agreement.positions) {
    std::printf(", elsewhere the choice leads by at most %.3g",
                static_cast<double>(agreement.lead_max));
  }
  std::printf("\n");
}

Json Facts(const v1::GetServerInfoResponse& info) {
  return {{"model", info.model()},
          {"backend", info.fingerprint().backend()},
          {"architecture", info.fingerprint().architecture()}};
}

}  // namespace

absl::Status RunCompare(const Arguments& arguments) {
  ConnectFlags connect;
  std::string other_target;
  std::string prompts_path;
  std::string out;
  int64_t new_tokens = 48;
  Flags flags("compare",
              "Says how far two clusters under different contracts agree: greedy answers of both,\n"
              "and the greedy id at every position of the first one's texts, teacher forced.");
  connect.AddTo(&flags);
  flags.Require("other", &other_target, "host:port of the other cluster's gateway");
  flags.Require("prompts", &prompts_path, "file with a prompt in each line");
  flags.Add("new_tokens", &new_tokens, {1, kTokensMax}, "of each answer at most");
  flags.Add("out", &out, "file for the result as JSON");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_RETURN_IF_ERROR(base::CheckTarget("--other", other_target));
  if (!out.empty()) LOCKSTEP_RETURN_IF_ERROR(CheckWritable(out));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, ReadFile(prompts_path));
  const std::vector<std::string> prompts = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(prompts_path, ": holds no prompt"));
  }

  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::RolloutClient one(reach);
  client::RolloutClient::Options reach_other = reach;
  reach_other.target = other_target;
  client::RolloutClient other(reach_other);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse one_info, one.GetServerInfo());
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse other_info, other.GetServerInfo());
  std::vector<v1::GenerateRequest> requests;
  for (const std::string& prompt : prompts) requests.push_back(GreedyRequest(prompt, new_tokens));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto one_answers, Answers(one, requests));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto other_answers, Answers(other, requests));

  Json report = NewReport("compare", "greedy", arguments);
  report["clusters"] = {Facts(one_info), Facts(other_info)};
  Result result;
  int64_t equal_answers = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(Compare(&one, &other, one_answers[i], &result));
    const v1::Sample& mine = one_answers[i].samples(0);
    const v1::Sample& theirs = other_answers[i].samples(0);
    equal_answers += mine.token_ids() == theirs.token_ids() ? 1 : 0;
    report["answers"].push_back({prompts[i], mine.text(), theirs.text()});
  }
  if (result.prompts.positions + result.answers.positions == 0) {
    return absl::FailedPreconditionError("no position was compared");
  }
  report["of_prompts"] = result.prompts.ToJson();
  report["of_answers"] = result.answers.ToJson();
  report["equal_answers"] = equal_answers;
  report["logprob_difference_max"] = result.logprob_difference_max;
  Print("prompts", result.prompts);
  Print("answers", result.answers);
  std::printf("%lld of %zu answers equal; logprobs of all text differ by at most %.3g\n",
              static_cast<long long>(equal_answers), requests.size(),
              static_cast<double>(result.logprob_difference_max));
  return out.empty() ? absl::OkStatus() : WriteReport(out, report);
}

}  // namespace lockstep::cli
