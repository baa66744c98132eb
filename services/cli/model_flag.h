#pragma once

#include <string>

#include "absl/status/status.h"

namespace lockstep::cli {

// INVALID_ARGUMENT where --model names a directory that cannot be one of a model.
absl::Status CheckModel(const std::string& model);

}  // namespace lockstep::cli
