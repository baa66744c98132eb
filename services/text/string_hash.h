#pragma once

#include <cstddef>
#include <string_view>

#include "common/base/hash.h"

namespace lockstep::text {

// Hash for maps whose keys are strings or views of them. Abseil's own does not take
// std::string_view where absl::string_view is a class of its own.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return base::Hash64(text); }
};

}  // namespace lockstep::text
