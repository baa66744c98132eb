#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lockstep/v1/rollout.pb.h"

namespace lockstep::cli {

// A request and its answer, kept as JSON so that the answer can be asked for again.
struct Record {
  v1::GenerateRequest request;
  v1::GenerateResponse response;
};

absl::Status WriteRecord(const std::string& path, const Record& record);
// With a sample at least. INVALID_ARGUMENT names the file and what is wrong in it.
absl::StatusOr<Record> ReadRecord(const std::string& path);

}  // namespace lockstep::cli
