#include "services/cli/generate_flags.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace lockstep::cli {
namespace {

constexpr Range<uint64_t> kSeeds = {0, std::numeric_limits<uint64_t>::max()};

}  // namespace

// Ranges are the API's, where that does not depend on the model.
void GenerateFlags::AddTo(Flags* flags) {
  flags->Add("prompt", &prompt, "prompt as text");
  flags->Add("prompt_ids", &prompt_ids, kTokenIds, "prompt as token ids, divided by commas");
  flags->Add("request_id", &request_id, "name of the request, for retries");
  flags->Add("routing_key", &routing_key, "requests with one key meet on one worker");
  flags->Add("n", &n, {1, 1024}, "samples");
  flags->Add("seed", &seed, kSeeds, "seed of all samples; default: hash of the request id");
  flags->Add("exact_seed", &exact_seed, kSeeds,
             "sub-seed of the one sample, as an answer returned it");
  flags->Add("temperature", &temperature, {0, 1e6f}, "0 is greedy");
  flags->Add("top_k", &top_k, {-1, std::numeric_limits<int64_t>::max()},
             "keep this many most probable ids");
  flags->Add("top_p", &top_p, {0, 1}, "keep the most probable ids up to this mass");
  flags->Add("min_p", &min_p, {0, 1}, "drop ids below this part of the largest probability");
  flags->Add("repetition_penalty", &repetition_penalty, {0.01f, 100}, "of ids in prompt or output");
  flags->Add("frequency_penalty", &frequency_penalty, {-100, 100}, "times the count in the output");
  flags->Add("presence_penalty", &presence_penalty, {-100, 100}, "once when in the output");
  flags->Add("max_new_tokens", &max_new_tokens, {0, kTokensMax}, "tokens to generate at most");
  flags->Add("min_new_tokens", &min_new_tokens, {0, kTokensMax},
             "tokens before any stop takes effect");
  flags->Add("stop", &stop_strings, "text that ends the sample");
  flags->Add("stop_ids", &stop_ids, kTokenIds, "ids that end the sample");
  flags->Add("ignore_eos", &ignore_eos, "go on after end-of-sequence ids");
  flags->Add("top_logprobs", &top_logprobs, {0, 64}, "most probable ids to show for each position");
  flags->Add("prompt_logprobs_from", &prompt_logprobs_from, {1, kTokensMax},
             "logprobs of prompt ids from here on");
  flags->Add("entropy", &entropy, "entropy of each position");
  flags->Add("no_cache", &no_cache, "neither read nor write the prefix cache");
}

absl::StatusOr<v1::GenerateRequest> GenerateFlags::Build() const {
  if (prompt.has_value() == prompt_ids.has_value()) {
    return absl::InvalidArgumentError("give either --prompt or --prompt_ids");
  }
  for (const auto& [flag, text] :
       {std::pair("--request_id", &request_id), std::pair("--routing_key", &routing_key)}) {
    if (base::ToValidUtf8(*text) != *text) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": is no UTF-8"));
    }
  }
  v1::GenerateRequest request;
  if (prompt.has_value()) request.set_prompt_text(*prompt);
  if (prompt_ids.has_value()) {
    request.mutable_prompt_ids()->mutable_ids()->Add(prompt_ids->begin(), prompt_ids->end());
  }
  request.set_request_id(request_id);
  request.set_routing_key(routing_key);
  if (n.has_value()) request.set_n(*n);
  if (seed.has_value()) request.set_seed(*seed);
  if (exact_seed.has_value()) request.set_exact_seed(*exact_seed);
  request.set_disable_prefix_cache(no_cache);

  v1::SamplingParams* sampling = request.mutable_sampling();
  if (temperature.has_value()) sampling->set_temperature(*temperature);
  if (top_k.has_value()) sampling->set_top_k(*top_k);
  if (top_p.has_value()) sampling->set_top_p(*top_p);
  if (min_p.has_value()) sampling->set_min_p(*min_p);
  if (repetition_penalty.has_value()) sampling->set_repetition_penalty(*repetition_penalty);
  if (frequency_penalty.has_value()) sampling->set_frequency_penalty(*frequency_penalty);
  if (presence_penalty.has_value()) sampling->set_presence_penalty(*presence_penalty);

  v1::StopOptions* stop = request.mutable_stop();
  if (max_new_tokens.has_value()) stop->set_max_new_tokens(*max_new_tokens);
  if (min_new_tokens.has_value()) stop->set_min_new_tokens(*min_new_tokens);
  for (const std::string& text : stop_strings) stop->add_stop_strings(text);
  stop->mutable_stop_ids()->Add(stop_ids.begin(), stop_ids.end());
  stop->set_ignore_eos(ignore_eos);

  v1::LogprobOptions* logprobs = request.mutable_logprobs();
  logprobs->set_top_count(top_logprobs);
  logprobs->set_entropy(entropy);
  if (prompt_logprobs_from.has_value()) logprobs->set_prompt_from(*prompt_logprobs_from);
  return request;
}

}  // namespace lockstep::cli
