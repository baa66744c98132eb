#include "services/worker/wrong_bits_mark.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"

namespace lockstep::worker {
namespace {

constexpr size_t kMarkBytesMax = 64 << 10;

}  // namespace

std::string WrongBitsMarkPath(const std::string& certificates_path, const std::string& worker_id) {
  if (certificates_path.empty()) return "";
  // A name with a slash would lead elsewhere.
  std::string name = worker_id;
  for (char& c : name) c = c == '/' ? '_' : c;
  return absl::StrCat(certificates_path, ".", name, ".wrong_bits");
}

absl::Status LeaveWrongBitsMark(const std::string& path, const absl::Status& why) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << why.message() << '\n';
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
}

absl::Status CheckNoWrongBitsMark(const std::string& path) {
  std::error_code ignored;
  if (path.empty() || !std::filesystem::exists(path, ignored)) return absl::OkStatus();
  std::string why = base::ReadRegularFile(path, kMarkBytesMax).value_or("");
  while (!why.empty() && why.back() == '\n') why.pop_back();
  return absl::FailedPreconditionError(
      absl::StrCat("this worker computed wrong bits before (", why, "), says ", path,
                   "; look at the device, and remove the file when it is sound or another one"));
}

}  // namespace lockstep::worker
