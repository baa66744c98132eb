#include "services/cli/files.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace lockstep::cli {

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory"));
  }
  // A device may never end, and to read from one may do something.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_fifo(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is neither a file nor a pipe"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened"));
  std::string content;
  char buffer[1 << 16];
  while (content.size() <= bytes_max) {
    file.read(buffer, sizeof(buffer));
    if (file.gcount() == 0) return content;
    content.append(buffer, static_cast<size_t>(file.gcount()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": is longer than ", bytes_max, " bytes, which is what is read at most"));
}

absl::Status CheckRegularFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file"));
}

absl::Status CheckWritable(const std::string& path) {
  std::error_code error;
  const auto refuse = [](const std::filesystem::path& what, const char* why) {
    return absl::InvalidArgumentError(absl::StrCat(what.string(), why));
  };
  if (std::filesystem::is_directory(path, error)) return refuse(path, ": is a directory");
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return refuse(path, ": is no regular file");
  }
  std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (!std::filesystem::is_directory(directory, error)) {
    return refuse(directory, ": is no directory");
  }
  if (access(directory.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file || std::rename(fresh.c_str(), path.c_str()) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cli
