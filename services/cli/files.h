#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Whole files, for command lines. Errors name the path.
namespace lockstep::cli {

// INVALID_ARGUMENT when the file cannot be read: it was named by whoever gave the command.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// Whether WriteFile() can be expected to work later, asked before long work: INVALID_ARGUMENT where
// there is something else than a file, or no directory that could be written to.
absl::Status CheckWritable(const std::string& path);
// Replaces the file at once: a reader sees the old content or the new one.
absl::Status WriteFile(const std::string& path, const std::string& content);

}  // namespace lockstep::cli
