#include "common/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::base {
namespace {

absl::Status SystemError(const std::string& path, int error) {
  const std::string text =
      absl::StrCat(path, ": ", std::error_code(error, std::generic_category()).message());
  return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  // Without O_NONBLOCK a FIFO would wait in open() itself; a regular file does not mind it.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return SystemError(path, errno);
  RegularFile file(fd, 0);
  struct stat info = {};
  if (fstat(fd, &info) != 0) return SystemError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file"));
  }
  file.bytes_ = static_cast<uint64_t>(info.st_size);
  return file;
}

RegularFile::~RegularFile() {
  if (fd_ >= 0) close(fd_);
}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t bytes_max) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  if (file.bytes() > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file.bytes(), " bytes; at most ", bytes_max, " are read"));
  }
  std::string text(file.bytes(), '\0');
  for (size_t done = 0; done < text.size();) {
    const ssize_t taken = read(file.fd(), text.data() + done, text.size() - done);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) return SystemError(path, errno);
    if (taken == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ends after ", done, " of ", text.size(), " bytes"));
    }
    done += static_cast<size_t>(taken);
  }
  return text;
}

}  // namespace lockstep::base
