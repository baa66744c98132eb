#pragma once

#include <string>
#include <string_view>

namespace lockstep::text {

// Unicode normalisation form C of valid UTF-8, in time O(n log n) for any input.
std::string NormalizeNfc(std::string_view text);

// True when `text` is certainly in form C already; false when it has to be looked at closely.
bool IsClearlyNfc(std::string_view text);

}  // namespace lockstep::text
