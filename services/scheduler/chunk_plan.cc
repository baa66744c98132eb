#include "services/scheduler/chunk_plan.h"

#include "absl/strings/str_cat.h"

namespace lockstep::scheduler {
namespace {

bool LengthIsPossible(const CutBounds& bounds, int64_t length) {
  if (bounds.length_max == 0) return true;
  return length >= bounds.plan.length && length <= bounds.length_max;
}

}  // namespace

absl::Status CheckCut(const CutBounds& bounds, const Cut& cut) {
  const int64_t split = bounds.plan.split_kv_size;
  if (cut.begin < 0 || cut.end <= cut.begin) {
    return absl::OutOfRangeError(absl::StrCat("cut [", cut.begin, ", ", cut.end, ") is empty"));
  }
  if (cut.begin % bounds.kv_block_tokens != 0) {
    return absl::OutOfRangeError(absl::StrCat("cut begins at ", cut.begin, ", not a multiple of ",
                                              bounds.kv_block_tokens, " (KV block)"));
  }
  // A worker that does not tell the length may end a prefill anywhere it could lie.
  const int64_t length = cut.length != 0 ? cut.length : cut.end;
  const bool aligned = cut.end % split == 0;
  if (cut.length == 0 && aligned) return absl::OkStatus();
  if (!LengthIsPossible(bounds, length)) {
    return absl::OutOfRangeError(absl::StrCat("cut ends at ", cut.end, " of length ", length,
                                              "; the plan allows lengths in [", bounds.plan.length,
                                              ", ", bounds.length_max, "]"));
  }
  if (cut.end > length || (!aligned && cut.end != length)) {
    return absl::OutOfRangeError(absl::StrCat("cut ends at ", cut.end, ", not a multiple of ",
                                              split, " (split) nor the length ", length));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::scheduler
