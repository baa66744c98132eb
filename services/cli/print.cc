#include "services/cli/print.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "services/client/arrays.h"

namespace lockstep::cli {
namespace {

void Line(const char* name, const std::string& value) {
  if (!value.empty()) std::printf("  %-10s %s\n", name, value.c_str());
}

std::string StopText(const v1::Sample& sample) {
  const std::string reason = v1::FinishReason_Name(sample.finish_reason()).substr(14);
  const v1::MatchedStop& stop = sample.matched_stop();
  if (stop.has_id()) return absl::StrCat(reason, " at id ", stop.id());
  if (stop.has_string()) return absl::StrCat(reason, " at \"", stop.string(), "\"");
  if (sample.has_error()) return absl::StrCat(reason, ": ", sample.error().message());
  return reason;
}

std::string UsageText(const v1::Usage& usage) {
  std::string text = absl::StrFormat(
      "prompt %d (cached %d), generated %d; queue %.3f s, prefill %.3f s, decode %.3f s; on %s",
      usage.prompt_tokens(), usage.cached_tokens(), usage.generated_tokens(), usage.queue_seconds(),
      usage.prefill_seconds(), usage.decode_seconds(), usage.worker_id());
  if (usage.preemptions() > 0) absl::StrAppend(&text, "; preempted ", usage.preemptions());
  if (usage.resumptions() > 0) absl::StrAppend(&text, "; resumed ", usage.resumptions());
  return text;
}

void PrintLogprobs(const char* prefix, const v1::LogprobArrays& arrays) {
  const auto name = [prefix](const char* rest) { return absl::StrCat(prefix, rest); };
  Line(name("raw").c_str(), FloatsText(arrays.raw()));
  if (arrays.scaled() != arrays.raw()) Line(name("scaled").c_str(), FloatsText(arrays.scaled()));
  Line(name("entropy").c_str(), FloatsText(arrays.entropy()));
  Line(name("top ids").c_str(), IdsText(arrays.top_ids()));
  Line(name("top").c_str(), FloatsText(arrays.top_logprobs()));
}

}  // namespace

std::string IdsText(const std::string& bytes) { return absl::StrJoin(client::ReadIds(bytes), " "); }

std::string FloatsText(const std::string& bytes) {
  return absl::StrJoin(client::ReadFloats(bytes), " ", [](std::string* out, float value) {
    absl::StrAppendFormat(out, "%.9g", value);
  });
}

void PrintSample(const v1::Sample& sample) {
  std::printf("sample %lld, sub-seed %llu\n", static_cast<long long>(sample.index()),
              static_cast<unsigned long long>(sample.sub_seed()));
  Line("text", sample.text());
  Line("ids", IdsText(sample.token_ids()));
  PrintLogprobs("", sample.logprobs());
  PrintLogprobs("prompt ", sample.prompt_logprobs());
  Line("finish", StopText(sample));
  Line("usage", UsageText(sample.usage()));
  Line("receipt", sample.receipt().digest());
}

void PrintResponse(const v1::GenerateResponse& response) {
  std::printf("request %s\n", response.request_id().c_str());
  Line("prompt ids", IdsText(response.prompt_ids()));
  for (const v1::Sample& sample : response.samples()) PrintSample(sample);
}

}  // namespace lockstep::cli
