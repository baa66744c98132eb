#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"

// How samples ended. Who counts, compares or proves must not take a part for the whole.
namespace lockstep::cli {

// Whether a sample was cut short, by an abort, a deadline, a drain or a failure: what is there is a
// prefix of the whole.
bool EndedEarly(const v1::Sample& sample);

// OK for a sample that came to its own end; otherwise says what cut it short.
absl::Status CheckEnded(const v1::Sample& sample);

// The sample of an answer to one request for one sample, which must have come to its own end.
absl::StatusOr<v1::Sample> WholeSample(const absl::StatusOr<v1::GenerateResponse>& answer);

}  // namespace lockstep::cli
