#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

// `bytes` as valid UTF-8: every part that is not becomes U+FFFD, one for each maximal prefix of a
// sequence (the rule of WHATWG and Unicode). Valid input comes back unchanged.
std::string ToValidUtf8(std::string_view bytes);

}  // namespace lockstep::base
