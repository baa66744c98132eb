#include "services/gateway/logprob_runs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/packed_array.h"
#include "common/base/status_macros.h"

namespace lockstep::gateway {
namespace {

constexpr int64_t kEntryBytes = base::kPackedNumberBytes;

}  // namespace

LogprobWidths WidthsFor(const v1::LogprobOptions& options, bool generated, bool details) {
  LogprobWidths widths;
  widths.raw = widths.scaled = generated ? 1 : 0;
  if (details) {
    widths.entropy = options.entropy() ? 1 : 0;
    widths.top = options.top_count();
    widths.chosen = options.chosen_ids_size();
  }
  return widths;
}

absl::Status AppendArray(std::string_view incoming, absl::string_view name, int64_t begin,
                         int64_t count, int64_t width, int64_t base, int64_t have,
                         std::string* into) {
  const int64_t stride = width * kEntryBytes;
  if (static_cast<int64_t>(incoming.size()) != count * stride) {
    return absl::InternalError(
        absl::StrCat(name, ": ", incoming.size(), " bytes for ", count, " positions of ", stride));
  }
  if (begin < base || begin > base + have) {
    return absl::InternalError(absl::StrCat(name, ": position ", begin, " follows ", base + have));
  }
  const int64_t overlap = std::min(base + have - begin, count);
  for (int64_t i = 0; i < overlap; ++i) {
    const std::string_view known =
        std::string_view(*into).substr((begin - base + i) * stride, stride);
    if (known != incoming.substr(i * stride, stride)) {
      return absl::DataLossError(
          absl::StrCat(name, ": position ", begin + i, " came twice with other bits"));
    }
  }
  into->append(incoming.substr(overlap * stride));
  return absl::OkStatus();
}

absl::Status AppendLogprobs(const v1::LogprobArrays& incoming, int64_t begin, int64_t count,
                            const LogprobWidths& widths, int64_t base, int64_t have,
                            v1::LogprobArrays* into, int64_t* added) {
  const auto append = [&](const std::string& from, absl::string_view name, int64_t width,
                          std::string* to) {
    return AppendArray(from, name, begin, count, width, base, have, to);
  };
  LOCKSTEP_RETURN_IF_ERROR(append(incoming.raw(), "raw", widths.raw, into->mutable_raw()));
  LOCKSTEP_RETURN_IF_ERROR(
      append(incoming.scaled(), "scaled", widths.scaled, into->mutable_scaled()));
  LOCKSTEP_RETURN_IF_ERROR(
      append(incoming.entropy(), "entropy", widths.entropy, into->mutable_entropy()));
  LOCKSTEP_RETURN_IF_ERROR(
      append(incoming.top_ids(), "top_ids", widths.top, into->mutable_top_ids()));
  LOCKSTEP_RETURN_IF_ERROR(
      append(incoming.top_logprobs(), "top_logprobs", widths.top, into->mutable_top_logprobs()));
  LOCKSTEP_RETURN_IF_ERROR(append(incoming.chosen_logprobs(), "chosen_logprobs", widths.chosen,
                                  into->mutable_chosen_logprobs()));
  *added = std::max<int64_t>(0, begin + count - (base + have));
  return absl::OkStatus();
}

v1::LogprobArrays SliceLogprobs(const v1::LogprobArrays& arrays, const LogprobWidths& widths,
                                int64_t begin, int64_t end) {
  const auto slice = [begin, end](const std::string& from, int64_t width) {
    const int64_t stride = width * kEntryBytes;
    return from.substr(begin * stride, (end - begin) * stride);
  };
  v1::LogprobArrays out;
  out.set_raw(slice(arrays.raw(), widths.raw));
  out.set_scaled(slice(arrays.scaled(), widths.scaled));
  out.set_entropy(slice(arrays.entropy(), widths.entropy));
  out.set_top_ids(slice(arrays.top_ids(), widths.top));
  out.set_top_logprobs(slice(arrays.top_logprobs(), widths.top));
  out.set_chosen_logprobs(slice(arrays.chosen_logprobs(), widths.chosen));
  return out;
}

}  // namespace lockstep::gateway
