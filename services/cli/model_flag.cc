#include "services/cli/model_flag.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "services/worker/model/model_name.h"

namespace lockstep::cli {

absl::Status CheckModel(const std::string& model) {
  if (!worker::NamesDirectory(model)) return absl::OkStatus();
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) {
    return absl::InvalidArgumentError(absl::StrCat("--model: '", model, "' is no directory"));
  }
  if (!std::filesystem::exists(std::filesystem::path(model) / "config.json", error)) {
    return absl::InvalidArgumentError(absl::StrCat("--model: ", model, " has no config.json"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cli
