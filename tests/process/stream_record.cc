#include "tests/process/stream_record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "services/client/sample_bits.h"

namespace lockstep::testing {
namespace {

void Append(const v1::LogprobArrays& part, v1::LogprobArrays* whole) {
  whole->mutable_raw()->append(part.raw());
  whole->mutable_scaled()->append(part.scaled());
  whole->mutable_entropy()->append(part.entropy());
  whole->mutable_top_ids()->append(part.top_ids());
  whole->mutable_top_logprobs()->append(part.top_logprobs());
  whole->mutable_chosen_logprobs()->append(part.chosen_logprobs());
}

// Everything that came before the end, under the fields that only the end brings.
void Complete(const v1::Sample& finished, v1::Sample* sample) {
  v1::Sample whole = finished;
  whole.mutable_token_ids()->swap(*sample->mutable_token_ids());
  whole.mutable_text()->swap(*sample->mutable_text());
  whole.mutable_logprobs()->Swap(sample->mutable_logprobs());
  whole.mutable_prompt_logprobs()->Swap(sample->mutable_prompt_logprobs());
  sample->Swap(&whole);
}

}  // namespace

StreamRecord ReadStream(
    client::RolloutClient* cluster, const v1::GenerateRequest& request,
    const std::function<void(size_t tokens, const std::string& text)>& on_tokens) {
  StreamRecord record;
  absl::Status order;
  absl::Time last = absl::InfiniteFuture();
  record.status = cluster->GenerateStream(request, [&](const v1::GenerateDelta& delta) {
    v1::Sample* sample = &record.sample;
    if (!delta.token_ids().empty()) {
      const size_t tokens = sample->token_ids().size() / sizeof(uint32_t);
      if (order.ok() && delta.token_begin() != static_cast<int64_t>(tokens)) {
        order = absl::DataLossError(
            absl::StrCat("index ", delta.token_begin(), " came where ", tokens, " was due"));
      }
      const absl::Time now = absl::Now();
      record.gap_max = std::max(record.gap_max, now - last);
      last = now;
    }
    sample->mutable_token_ids()->append(delta.token_ids());
    sample->mutable_text()->append(delta.text());
    Append(delta.logprobs(), sample->mutable_logprobs());
    Append(delta.prompt_logprobs(), sample->mutable_prompt_logprobs());
    if (delta.has_finished()) {
      Complete(delta.finished(), sample);
    } else if (on_tokens != nullptr && !delta.token_ids().empty()) {
      on_tokens(sample->token_ids().size() / sizeof(uint32_t), sample->text());
    }
  });
  if (record.status.ok()) record.status = order;
  return record;
}

StreamLoad::StreamLoad(client::RolloutClient* cluster, const std::vector<Kind>& kinds, int streams)
    : cluster_(cluster), results_(streams) {
  for (int i = 0; i < streams; ++i) {
    Kind kind = kinds[i % kinds.size()];
    // Keys spread the streams over all workers.
    kind.request.set_routing_key(absl::StrCat("stream ", i));
    threads_.emplace_back([this, kind, i] { Run(kind, &results_[i]); });
  }
}

StreamLoad::~StreamLoad() { Finish(); }

void StreamLoad::Run(const Kind& kind, Result* result) {
  while (!stopping_ && result->failures.empty()) {
    size_t seen = 0;
    const StreamRecord record =
        ReadStream(cluster_, kind.request, [&](size_t tokens, const std::string&) {
          tokens_ += static_cast<int64_t>(tokens - seen);
          seen = tokens;
        });
    ++result->answers;
    result->resumptions += record.sample.usage().resumptions();
    result->gap_max = std::max(result->gap_max, record.gap_max);
    if (!record.status.ok()) {
      result->failures.push_back(record.status.ToString());
    } else if (auto difference = client::FirstDifference(kind.expected, record.sample)) {
      result->failures.push_back(*difference);
    }
  }
}

StreamLoad::Result StreamLoad::Finish() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  Result sum;
  for (const Result& result : results_) {
    sum.failures.insert(sum.failures.end(), result.failures.begin(), result.failures.end());
    sum.answers += result.answers;
    sum.resumptions += result.resumptions;
    sum.gap_max = std::max(sum.gap_max, result.gap_max);
  }
  return sum;
}

absl::StatusOr<std::vector<StreamLoad::Kind>> QuietKinds(client::RolloutClient* cluster,
                                                         int64_t new_tokens) {
  std::vector<StreamLoad::Kind> kinds;
  for (const char* prompt : {"Tell me a story:", "Say it with emoji:", "12+34*2="}) {
    v1::GenerateRequest request;
    request.set_prompt_text(prompt);
    request.set_seed(17);
    request.mutable_stop()->set_max_new_tokens(new_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    request.set_disable_prefix_cache(true);
    const StreamRecord record = ReadStream(cluster, request);
    LOCKSTEP_RETURN_IF_ERROR(record.status);
    request.set_disable_prefix_cache(false);
    kinds.push_back({request, record.sample});
  }
  return kinds;
}

}  // namespace lockstep::testing
