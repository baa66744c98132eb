#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace lockstep::cli {

// The one way to write JSON here. Prompts and paths are bytes, and what in them is no UTF-8 is
// shown as U+FFFD: the library's own default throws, when all the work is done.
template <typename Json>
std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace lockstep::cli
