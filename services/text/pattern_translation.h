#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lockstep::text {

// Rewrites a pattern in Oniguruma's Ruby syntax, in which tokenizer.json files are written, into
// one that PCRE2 (with UTF, UCP and MULTILINE) reads in the same way. Only constructs whose meaning
// is the same in both, or can be said exactly, are let through; the rest is InvalidArgument naming
// the construct: silently different splits would be different token ids.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

// A PCRE2 pattern that matches exactly `text`.
std::string EscapePattern(std::string_view text);

}  // namespace lockstep::text
