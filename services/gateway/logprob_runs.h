#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lockstep/v1/types.pb.h"

namespace lockstep::gateway {

// Entries a position in each array of LogprobArrays, as the request asked for them.
struct LogprobWidths {
  int64_t raw = 1;
  int64_t scaled = 1;
  int64_t entropy = 0;
  int64_t top = 0;
  int64_t chosen = 0;

  // Numbers a position, in all arrays together.
  int64_t Sum() const { return raw + scaled + entropy + 2 * top + chosen; }
};

LogprobWidths WidthsFor(const v1::LogprobOptions& options, bool generated, bool details);

// Puts positions [begin, begin + count) of `incoming` behind the `have` positions (counted from
// `base`) that `into` holds. Positions that are there already must be equal bit for bit:
// DATA_LOSS names the first that is not. A gap, or an array of another size than the widths say,
// is INTERNAL. `added` gets the number of new positions.
absl::Status AppendLogprobs(const v1::LogprobArrays& incoming, int64_t begin, int64_t count,
                            const LogprobWidths& widths, int64_t base, int64_t have,
                            v1::LogprobArrays* into, int64_t* added);
// The same for one array of 4-byte entries, `width` a position.
absl::Status AppendArray(std::string_view incoming, absl::string_view name, int64_t begin,
                         int64_t count, int64_t width, int64_t base, int64_t have,
                         std::string* into);

// Positions [begin, end) of the arrays, counted from their first.
v1::LogprobArrays SliceLogprobs(const v1::LogprobArrays& arrays, const LogprobWidths& widths,
                                int64_t begin, int64_t end);

}  // namespace lockstep::gateway
