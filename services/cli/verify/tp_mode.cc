// The mode about workers whose models are shared by different numbers of ranks.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/cli/verify/modes.h"
#include "services/cli/verify/proof.h"

namespace lockstep::cli {
namespace {

constexpr char kStoryPrompt[] = "Tell me a story:";
constexpr int64_t kNewTokens = 32;
constexpr size_t kAtOnce = 32;

// A prompt and everything that may be asked about its answer.
absl::StatusOr<std::vector<std::pair<std::string, v1::GenerateRequest>>> Prompts(
    const Subject& subject) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> short_ids, subject.Ids(kStoryPrompt));
  const int64_t long_tokens = subject.split_tokens() + subject.block_tokens() + 8;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> long_ids, subject.LongIds(long_tokens, 91));
  v1::GenerateRequest greedy = RequestFor(short_ids, kNewTokens, 91);
  greedy.mutable_sampling()->set_temperature(0);
  v1::GenerateRequest filtered = RequestFor(short_ids, kNewTokens, 92);
  filtered.mutable_sampling()->set_temperature(0.9f);
  filtered.mutable_sampling()->set_top_k(40);
  filtered.mutable_sampling()->set_top_p(0.95f);
  filtered.mutable_logprobs()->set_top_count(5);
  filtered.mutable_logprobs()->set_entropy(true);
  v1::GenerateRequest scored = RequestFor(long_ids, kNewTokens, 93);
  scored.mutable_logprobs()->set_prompt_from(1);
  return std::vector<std::pair<std::string, v1::GenerateRequest>>{
      {"greedy", greedy},
      {"top-k and top-p, top logprobs, entropy", filtered},
      {absl::StrCat(long_tokens, " tokens, prompt logprobs"), scored}};
}

}  // namespace

absl::Status VerifyTp(Subject* subject, const VerifyOptions& options) {
  Proof proof("tp", subject);
  if (subject->workers_by_ranks().size() < 2) {
    return absl::FailedPreconditionError("tp: needs workers of different tensor_parallel");
  }
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto prompts, Prompts(*subject));
  std::vector<Job> kinds;
  for (const auto& [label, request] : prompts) {
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt, proof.Expect(label, request));
    kinds.push_back({prompt, request});
  }
  LOCKSTEP_RETURN_IF_ERROR(proof.Run(JobsInTurn(*subject, kinds, options.trials), kAtOnce));
  for (const auto& [ranks, workers] : subject->workers_by_ranks()) {
    proof.Require(absl::StrCat("workers of tensor_parallel ", ranks), workers);
  }
  proof.RequireBatchAbove(1);
  return proof.End();
}

}  // namespace lockstep::cli
