#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Whole files, for command lines. Errors name the path.
namespace lockstep::cli {

// As many bytes as the largest answer of a cluster.
inline constexpr size_t kFileBytesMax = size_t{1} << 30;

// Of a regular file or a pipe (`/dev/stdin`, what a shell puts in the place of a command), which
// may be endless, so at most `bytes_max` are read. INVALID_ARGUMENT when there are more, or the
// file cannot be read: it was named by whoever gave the command.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max = kFileBytesMax);
// Whether a library that reads files by itself, again and again, can be given this one.
absl::Status CheckRegularFile(const std::string& path);
// Whether WriteFile() can be expected to work later, asked before long work: INVALID_ARGUMENT where
// there is something else than a file, or no directory that could be written to.
absl::Status CheckWritable(const std::string& path);
// Replaces the file at once: a reader sees the old content or the new one.
absl::Status WriteFile(const std::string& path, const std::string& content);

}  // namespace lockstep::cli
