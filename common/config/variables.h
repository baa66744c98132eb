#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep::config {

// Puts the values of ${POD_NAME}, ${POD_NAMESPACE} and ${POD_IP} into a configuration, so that all
// pods of a set, and clusters in several namespaces, can share one. $${ stands for ${ itself, and
// comments stay as they are. `value_of` gives a name's value, or nothing. INVALID_ARGUMENT names
// `name`, the line and the variable: another one than those three, one without a value, or one with
// a value that could end a quoted text.
absl::StatusOr<std::string> ExpandVariables(
    const std::string& name, const std::string& text,
    const std::function<std::optional<std::string>(const std::string&)>& value_of);

// The process's environment.
std::optional<std::string> FromEnvironment(const std::string& variable);

}  // namespace lockstep::config
