// Modes about the company of a sequence in its steps: single, mixed, neighbours, long.
#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/cli/verify/modes.h"
#include "services/cli/verify/proof.h"

namespace lockstep::cli {
namespace {

constexpr char kShortPrompt[] = "12+34*2=";
constexpr char kStoryPrompt[] = "Tell me a story:";
// Tokens after a long prompt.
constexpr int64_t kShortAnswer = 16;
// Trials from which on `single` runs every batch size.
constexpr int64_t kAllSizesTrials = 50;

// Every size up to 64, then those around powers of two, where kernels change their shape.
std::vector<int64_t> BatchSizes(int64_t trials) {
  std::vector<int64_t> all;
  for (int64_t size = 1; size <= 64; ++size) all.push_back(size);
  if (trials >= kAllSizesTrials) {
    for (const int64_t size : {65, 127, 128, 129, 255, 256, 257}) all.push_back(size);
    return all;
  }
  std::vector<int64_t> some;
  const int64_t count = std::max<int64_t>(trials, 2);
  for (int64_t i = 0; i < count; ++i) {
    some.push_back(all[static_cast<size_t>(i * 63 / (count - 1))]);
  }
  return some;
}

struct Variant {
  const char* name;
  std::function<void(v1::SamplingParams*)> set;
};

// Every sampler of the API, and values at the ends of their ranges.
std::vector<Variant> Variants() {
  return {
      {"greedy", [](auto* s) { s->set_temperature(0); }},
      {"T=1", [](auto*) {}},
      {"T=0.5", [](auto* s) { s->set_temperature(0.5); }},
      {"T=1e-6", [](auto* s) { s->set_temperature(1e-6f); }},
      {"T=1e6", [](auto* s) { s->set_temperature(1e6f); }},
      {"top_p=0.9", [](auto* s) { s->set_top_p(0.9f); }},
      {"top_p=1e-30", [](auto* s) { s->set_top_p(1e-30f); }},
      {"top_k=5", [](auto* s) { s->set_top_k(5); }},
      {"min_p=0.1", [](auto* s) { s->set_min_p(0.1f); }},
      {"all filters",
       [](auto* s) {
         s->set_temperature(0.8f);
         s->set_top_k(40);
         s->set_top_p(0.95f);
         s->set_min_p(0.01f);
       }},
      {"penalties",
       [](auto* s) {
         s->set_repetition_penalty(1.3f);
         s->set_frequency_penalty(0.7f);
         s->set_presence_penalty(-0.4f);
       }},
      {"extreme penalties",
       [](auto* s) {
         s->set_repetition_penalty(100);
         s->set_frequency_penalty(-100);
         s->set_presence_penalty(100);
       }},
      {"biases",
       [](auto* s) {
         v1::LogitBias* banned = s->add_logit_bias();
         banned->set_id(1);
         banned->set_bias(-std::numeric_limits<float>::infinity());
         v1::LogitBias* lifted = s->add_logit_bias();
         lifted->set_id(2);
         lifted->set_bias(3.5f);
         v1::LogitBias* pressed = s->add_logit_bias();
         pressed->set_id(3);
         pressed->set_bias(-1e30f);
       }},
  };
}

// `trials` of each, with as many answers at once as all grow to their end side by side, and prompts
// in what those leave of the KV, so that none is preempted and computed again.
std::vector<Load> LoadsThatFit(const Subject& subject, const Job& long_prompt,
                               int64_t prompt_tokens, const Job& long_answer, int64_t answer_tokens,
                               int64_t trials) {
  const int64_t workers = static_cast<int64_t>(subject.workers().size());
  const int64_t kv = subject.kv_tokens();
  // A sequence ends in a block of its own.
  const int64_t prompt_kv = prompt_tokens + kShortAnswer + subject.block_tokens();
  const int64_t answer_kv =
      answer_tokens + long_answer.request.prompt_ids().ids_size() + subject.block_tokens();
  const int64_t answers = std::clamp((kv - prompt_kv) / answer_kv, int64_t{1},
                                     std::max<int64_t>(1, (trials + workers - 1) / workers));
  const int64_t prompts = std::max<int64_t>(1, (kv - answers * answer_kv) / prompt_kv);
  const int64_t count = std::max(workers, trials);
  return {{.jobs = JobsInTurn(subject, {long_answer}, count),
           .at_once = static_cast<size_t>(workers * answers)},
          {.jobs = JobsInTurn(subject, {long_prompt}, count),
           .at_once = static_cast<size_t>(workers * prompts)}};
}

}  // namespace

absl::Status VerifySingle(Subject* subject, const VerifyOptions& options) {
  Proof proof("single", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> short_ids, subject->Ids(kShortPrompt));
  // Behind the border of a split, since an order that depends on the batch may show only where
  // blocks and splits are merged. With its answer it needs one block that it cannot share.
  const int64_t long_tokens = subject->split_tokens() + subject->block_tokens() + 8;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> long_ids, subject->LongIds(long_tokens, 7));
  const std::pair<std::string, v1::GenerateRequest> prompts[] = {
      {absl::StrCat("\"", kShortPrompt, "\", T=1"), RequestFor(short_ids, 16, 7)},
      {absl::StrCat(long_tokens, " tokens, T=1"), RequestFor(long_ids, 16, 8)}};
  std::vector<Job> kinds;
  for (const auto& [label, request] : prompts) {
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt, proof.Expect(label, request));
    kinds.push_back({prompt, request});
  }
  const std::vector<int64_t> sizes = BatchSizes(options.trials);
  for (const int64_t size : sizes) {
    std::vector<Job> jobs;
    for (size_t worker = 0; worker < subject->workers().size(); ++worker) {
      for (int64_t i = 0; i < size; ++i) {
        jobs.push_back(kinds[static_cast<size_t>(i) % kinds.size()]);
        jobs.back().request.set_routing_key(subject->KeyOf(worker));
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(proof.Run(jobs, jobs.size()));
  }
  proof.Require("batch sizes sent to each worker", static_cast<double>(sizes.size()));
  // Sequences that start together do not quite end together, so the largest step may hold fewer
  // than were sent; half of them must have met.
  for (int64_t above = 1; 2 * above < sizes.back(); above *= 2) proof.RequireBatchAbove(above);
  return proof.End();
}

absl::Status VerifyMixed(Subject* subject, const VerifyOptions& options) {
  Proof proof("mixed", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  const int64_t long_tokens = std::min<int64_t>(
      {3000, subject->info().context_tokens_max() - 64, subject->kv_tokens() / 2});
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> p1, subject->Ids(kShortPrompt));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> p2, subject->Ids(kStoryPrompt));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> long_ids, subject->LongIds(long_tokens, 1));
  const std::pair<std::string, v1::GenerateRequest> prompts[] = {
      {"P1", RequestFor(p1, 24, 11)},
      {"P2", RequestFor(p2, 32, 12)},
      {absl::StrCat("Long (", long_tokens, " tokens)"), RequestFor(long_ids, 16, 13)}};
  std::vector<Job> kinds;
  for (const auto& [label, request] : prompts) {
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt, proof.Expect(label, request));
    kinds.push_back({prompt, request});
  }
  std::vector<Job> jobs;
  const size_t workers = subject->workers().size();
  for (int64_t trial = 0; trial < options.trials; ++trial) {
    for (const Job& kind : kinds) {
      jobs.push_back(kind);
      jobs.back().request.set_routing_key(subject->KeyOf(static_cast<size_t>(trial) % workers));
      // Now and then the long prompt is computed anew, in chunks beside the others' decoding.
      jobs.back().request.set_disable_prefix_cache(trial % 8 < 2);
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(proof.Run(jobs, 48));
  proof.RequireBatchAbove(1);
  proof.RequireBatchAbove(2);
  proof.RequireGrowth("prefill chunks that ended before their prompt",
                      "lockstep_worker_prefill_cuts_total");
  return proof.End();
}

absl::Status VerifyLong(Subject* subject, const VerifyOptions& options) {
  Proof proof("long", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  const int64_t room = std::min(subject->info().context_tokens_max(), subject->kv_tokens());
  const int64_t prompt_tokens = std::min(options.long_prompt_tokens, room - kShortAnswer);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> short_ids, subject->Ids(kStoryPrompt));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> long_ids,
                            subject->LongIds(prompt_tokens, 9));
  const int64_t new_tokens =
      std::min(options.long_new_tokens, room - static_cast<int64_t>(short_ids.size()));
  const std::pair<std::string, v1::GenerateRequest> prompts[] = {
      {absl::StrCat(prompt_tokens, " + ", kShortAnswer, " tokens"),
       RequestFor(long_ids, kShortAnswer, 81)},
      {absl::StrCat(short_ids.size(), " + ", new_tokens, " tokens"),
       RequestFor(short_ids, new_tokens, 82)}};
  std::vector<Job> kinds;
  for (const auto& [label, request] : prompts) {
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt, proof.Expect(label, request));
    kinds.push_back({prompt, request});
    // Samples that shared their prompt's KV would not be prefilled in chunks.
    kinds.back().request.set_disable_prefix_cache(true);
  }
  LOCKSTEP_RETURN_IF_ERROR(proof.Run(
      LoadsThatFit(*subject, kinds[0], prompt_tokens, kinds[1], new_tokens, options.trials)));
  proof.RequireBatchAbove(1);
  proof.Require("splits of the longest sequence",
                static_cast<double>(std::max(prompt_tokens, new_tokens) / subject->split_tokens()));
  proof.RequireGrowth("prefill chunks that ended before their prompt",
                      "lockstep_worker_prefill_cuts_total");
  return proof.End();
}

absl::Status VerifyNeighbours(Subject* subject, const VerifyOptions& options) {
  Proof proof("neighbours", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, subject->Ids(kStoryPrompt));
  std::vector<Job> kinds;
  for (const Variant& variant : Variants()) {
    v1::GenerateRequest request = RequestFor(ids, 16, 21);
    variant.set(request.mutable_sampling());
    request.mutable_logprobs()->set_entropy(true);
    request.mutable_logprobs()->set_top_count(4);
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt, proof.Expect(variant.name, request));
    kinds.push_back({prompt, std::move(request)});
  }
  std::vector<Job> jobs;
  const size_t workers = subject->workers().size();
  for (int64_t trial = 0; trial < options.trials; ++trial) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      // Another one first each time, so that everyone meets everyone.
      jobs.push_back(kinds[(i + static_cast<size_t>(trial)) % kinds.size()]);
      jobs.back().request.set_routing_key(subject->KeyOf(static_cast<size_t>(trial) % workers));
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(proof.Run(jobs, 64));
  proof.RequireBatchAbove(1);
  proof.RequireBatchAbove(4);
  return proof.End();
}

}  // namespace lockstep::cli
