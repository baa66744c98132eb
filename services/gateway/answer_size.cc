#include "services/gateway/answer_size.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/packed_array.h"
#include "services/gateway/logprob_runs.h"

namespace lockstep::gateway {
namespace {

const char* Advice(AnswerForm form) {
  switch (form) {
    case AnswerForm::kWhole:
      return "; ask for fewer samples, positions or logprobs, or use GenerateStream";
    case AnswerForm::kScores:
      return "; ask for fewer positions, by a larger from, or for fewer logprobs";
    case AnswerForm::kBySample:
      return "; ask for fewer tokens or logprobs, or use GenerateStream";
    case AnswerForm::kAsItComes:
      break;
  }
  return "";
}

std::string TooLarge(absl::string_view what, int64_t bytes, AnswerForm form,
                     const ModelLimits& limits) {
  return absl::StrCat(what, bytes, " bytes, server.message_bytes_max is ", limits.message_bytes_max,
                      Advice(form));
}

// The fields that an answer's least size comes from.
std::string FieldsOf(const ValidRequest& request, AnswerForm form) {
  if (form == AnswerForm::kScores) return "ids and from";
  return absl::StrCat(form == AnswerForm::kWhole ? "n, " : "", "stop and logprobs",
                      request.prompt_logprobs_from > 0 ? " (prompt_from)" : "");
}

// Of one sample. Arrays only: the rest of it is a few hundred bytes and no text is certain.
int64_t SampleBytesMin(const ValidRequest& request, bool is_first) {
  const v1::StopOptions& stop = request.effective.stop();
  const bool stops = stop.stop_ids_size() > 0 || stop.stop_strings_size() > 0;
  const int64_t tokens = std::max(stops ? stop.min_new_tokens() : stop.max_new_tokens(),
                                  static_cast<int64_t>(request.generated_ids.size()));
  const v1::LogprobOptions& options = request.effective.logprobs();
  int64_t numbers = tokens * (1 + WidthsFor(options, options.generated(), true).Sum());
  if (is_first && request.prompt_logprobs_from > 0) {
    const int64_t positions =
        static_cast<int64_t>(request.prompt_ids.size()) - request.prompt_logprobs_from;
    numbers += positions * WidthsFor(options, true, options.prompt_details()).Sum();
  }
  return numbers * base::kPackedNumberBytes;
}

int64_t WholeBytesMin(const ValidRequest& request) {
  const int64_t first = SampleBytesMin(request, true);
  if (request.score_only) return first;
  return static_cast<int64_t>(request.prompt_ids.size()) * base::kPackedNumberBytes + first +
         (request.n - 1) * SampleBytesMin(request, false);
}

}  // namespace

absl::Status CheckAnswerCanFit(const ValidRequest& request, AnswerForm form,
                               const ModelLimits& limits) {
  if (form == AnswerForm::kAsItComes) return absl::OkStatus();
  const bool whole = form != AnswerForm::kBySample;
  const int64_t bytes = whole ? WholeBytesMin(request) : SampleBytesMin(request, true);
  if (bytes <= limits.message_bytes_max) return absl::OkStatus();
  const std::string what = absl::StrCat(FieldsOf(request, form), ": ",
                                        whole ? "the answer" : "a sample", " has at least ");
  return absl::InvalidArgumentError(TooLarge(what, bytes, form, limits));
}

absl::Status CheckAnswerFits(const AnswerBytes& bytes, AnswerForm form, const ModelLimits& limits) {
  if (form == AnswerForm::kAsItComes) return absl::OkStatus();
  const bool whole = form != AnswerForm::kBySample;
  const auto size = static_cast<int64_t>(
      whole ? bytes.whole : *std::max_element(bytes.samples.begin(), bytes.samples.end()));
  if (size <= limits.message_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      TooLarge(whole ? "the answer has " : "a sample has ", size, form, limits));
}

}  // namespace lockstep::gateway
