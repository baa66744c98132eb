#include "services/cli/sample_end.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep::cli {

bool EndedEarly(const v1::Sample& sample) {
  return sample.finish_reason() == v1::FINISH_REASON_ABORT ||
         sample.finish_reason() == v1::FINISH_REASON_PARTIAL ||
         sample.finish_reason() == v1::FINISH_REASON_ERROR;
}

absl::Status CheckEnded(const v1::Sample& sample) {
  const std::string name = absl::StrCat("sample ", sample.index());
  switch (sample.finish_reason()) {
    case v1::FINISH_REASON_STOP:
    case v1::FINISH_REASON_LENGTH:
      return absl::OkStatus();
    case v1::FINISH_REASON_ABORT:
      return absl::AbortedError(
          absl::StrCat(name, " is cut short: --timeout passed, or somebody aborted it"));
    case v1::FINISH_REASON_PARTIAL:
      return absl::UnavailableError(absl::StrCat(name, " is cut short: the gateway drains",
                                                 sample.has_error() ? "; its continuation: " : "",
                                                 sample.error().message()));
    default:
      return absl::InternalError(absl::StrCat(name, " failed: ", sample.error().message()));
  }
}

absl::StatusOr<v1::Sample> WholeSample(const absl::StatusOr<v1::GenerateResponse>& answer) {
  if (!answer.ok()) return answer.status();
  if (answer->samples_size() != 1) return absl::InternalError("an answer without a sample");
  if (const absl::Status ended = CheckEnded(answer->samples(0)); !ended.ok()) return ended;
  return answer->samples(0);
}

}  // namespace lockstep::cli
