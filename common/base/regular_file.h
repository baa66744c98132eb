#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace lockstep::base {

// A regular file, open for reading; closed with the object. Nothing else is opened under a name: a
// FIFO would wait for a writer, and a device may have no end. Errors begin with the path.
class RegularFile {
 public:
  // NOT_FOUND when there is nothing at `path`, INVALID_ARGUMENT when it cannot be opened or is no
  // regular file. Never waits.
  static absl::StatusOr<RegularFile> Open(const std::string& path);
  ~RegularFile();
  RegularFile(RegularFile&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}
  RegularFile& operator=(RegularFile&& other) noexcept;

  int fd() const { return fd_; }
  // When it was opened.
  uint64_t bytes() const { return bytes_; }

 private:
  RegularFile(int fd, uint64_t bytes) : fd_(fd), bytes_(bytes) {}

  int fd_;
  uint64_t bytes_;
};

// All of a regular file. INVALID_ARGUMENT too when it has more than `bytes_max`, or fewer than it
// had when it was opened.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t bytes_max);

}  // namespace lockstep::base
