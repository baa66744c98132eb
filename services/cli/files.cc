#include "services/cli/files.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace lockstep::cli {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened"));
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory"));
  }
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
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
