// The mode that compares one-pass scoring with token-by-token generation.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "services/cli/sample_end.h"
#include "services/cli/verify/modes.h"
#include "services/cli/verify/proof.h"
#include "services/client/arrays.h"
#include "services/client/sample_bits.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kNewTokens = 40;

// Logprobs of the last positions of a sequence.
struct Tail {
  std::string raw;
  std::string scaled;
};

Tail Last(const v1::LogprobArrays& arrays, size_t positions) {
  const size_t bytes = positions * sizeof(float);
  return {arrays.raw().substr(arrays.raw().size() - bytes),
          arrays.scaled().substr(arrays.scaled().size() - bytes)};
}

std::optional<std::string> Difference(const Tail& generated, const Tail& scored) {
  if (auto raw = client::FirstFloatDifference(generated.raw, scored.raw)) {
    return absl::StrCat("raw logprobs of generation and scoring differ at ", *raw);
  }
  if (auto scaled = client::FirstFloatDifference(generated.scaled, scored.scaled)) {
    return absl::StrCat("scaled logprobs of generation and scoring differ at ", *scaled);
  }
  return std::nullopt;
}

// One prompt: its generated sequence, and everything that scoring it must give.
struct Scored {
  v1::ScoreRequest request;
  v1::LogprobArrays expected;  // Of all positions from 1 on.
  size_t prompt_tokens = 0;
  size_t prompt = 0;  // In the proof.
};

// Generates alone and without cache, prompt logprobs included.
absl::StatusOr<Scored> Generate(Subject* subject, const std::vector<int64_t>& ids,
                                float temperature, Proof* proof) {
  v1::GenerateRequest request = RequestFor(ids, kNewTokens, 51);
  request.mutable_sampling()->set_temperature(temperature);
  request.mutable_logprobs()->set_prompt_from(1);
  request.set_disable_prefix_cache(true);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::Sample sample,
                            WholeSample(subject->cluster()->Generate(request)));
  Scored scored;
  scored.expected.set_raw(sample.prompt_logprobs().raw() + sample.logprobs().raw());
  scored.expected.set_scaled(sample.prompt_logprobs().scaled() + sample.logprobs().scaled());
  scored.prompt_tokens = ids.size();
  scored.request.mutable_ids()->Add(ids.begin(), ids.end());
  for (const uint32_t id : client::ReadIds(sample.token_ids())) scored.request.add_ids(id);
  scored.request.set_temperature(temperature);
  scored.prompt = proof->AddPrompt(
      absl::StrCat(ids.size(), " + ", kNewTokens, " tokens, T=", temperature), "equal");
  return scored;
}

// Scores from `from` on and compares with what generation returned.
absl::Status Score(Subject* subject, const Scored& scored, int64_t from, int64_t trial,
                   Proof* proof) {
  v1::ScoreRequest request = scored.request;
  request.set_from(from);
  request.set_disable_prefix_cache(trial % 4 == 3);
  request.set_routing_key(subject->KeyOf(static_cast<size_t>(trial) % subject->workers().size()));
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::ScoreResponse answer, subject->cluster()->Score(request));
  const size_t positions = static_cast<size_t>(request.ids_size() - from);
  if (answer.logprobs().raw().size() != positions * sizeof(float) ||
      answer.logprobs().scaled().size() != positions * sizeof(float)) {
    return absl::InternalError(absl::StrCat("scoring ", positions, " positions returned ",
                                            answer.logprobs().raw().size(), " bytes"));
  }
  const Tail actual = Last(answer.logprobs(), positions);
  const auto difference = Difference(Last(scored.expected, positions), actual);
  const std::string bits =
      difference.has_value()
          ? base::Hasher().Bytes(actual.raw).Bytes(actual.scaled).Finish().ToString()
          : "equal";
  proof->AddSample(scored.prompt, bits, answer.usage().worker_id(), difference);
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyPrefillVsDecode(Subject* subject, const VerifyOptions& options) {
  Proof proof("prefill_vs_decode", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> short_ids, subject->Ids("12+34*2="));
  // Generation crosses the border of a split.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> long_ids,
                            subject->LongIds(2 * subject->split_tokens() - kNewTokens / 2, 4));
  int64_t positions = 0;
  for (const std::vector<int64_t>& ids : {short_ids, long_ids}) {
    for (const float temperature : {0.0f, 0.5f, 1.0f}) {
      LOCKSTEP_ASSIGN_OR_RETURN(const Scored scored, Generate(subject, ids, temperature, &proof));
      const int64_t prompt = static_cast<int64_t>(scored.prompt_tokens);
      const int64_t offsets[] = {1, prompt, prompt + 1, prompt + 7, scored.request.ids_size() - 1};
      for (int64_t trial = 0; trial < options.trials; ++trial) {
        const int64_t from = offsets[static_cast<size_t>(trial) % std::size(offsets)];
        LOCKSTEP_RETURN_IF_ERROR(Score(subject, scored, from, trial, &proof));
        positions += scored.request.ids_size() - from;
      }
    }
  }
  proof.Require("positions compared", static_cast<double>(positions));
  proof.RequireGrowth("tokens computed in prefill", "lockstep_worker_prefilled_tokens_total");
  proof.RequireGrowth("tokens found in the prefix cache",
                      "lockstep_worker_prefix_hit_tokens_total");
  return proof.End();
}

}  // namespace lockstep::cli
