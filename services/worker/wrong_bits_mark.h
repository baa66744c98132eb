#pragma once

#include <string>

#include "absl/status/status.h"

// A worker that computed wrong bits ends, and whoever keeps it running starts it again on the same
// device. So it leaves a file, and none starts beside one: a person has to look.
namespace lockstep::worker {

// Beside the certificates, which are of a device too: CERTIFICATES.WORKER_ID.wrong_bits. Without
// certificates there is no place for one.
std::string WrongBitsMarkPath(const std::string& certificates_path, const std::string& worker_id);

// Writes `why` into the file. OK without a path.
absl::Status LeaveWrongBitsMark(const std::string& path, const absl::Status& why);

// FAILED_PRECONDITION, with the file and what it says, when there is one.
absl::Status CheckNoWrongBitsMark(const std::string& path);

}  // namespace lockstep::worker
