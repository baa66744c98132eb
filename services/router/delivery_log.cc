#include "services/router/delivery_log.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/packed_array.h"
#include "common/base/status_macros.h"

namespace lockstep::router {
namespace {

using ArrayRefs = std::array<std::string*, 6>;

ArrayRefs Arrays(LogprobBytes* bytes) {
  return {&bytes->raw,     &bytes->scaled,       &bytes->entropy,
          &bytes->top_ids, &bytes->top_logprobs, &bytes->chosen_logprobs};
}

// Every array has a whole number of numbers for each of `count` positions.
absl::Status CheckShape(LogprobBytes* bytes, int64_t count) {
  for (const std::string* array : Arrays(bytes)) {
    if (array->empty()) continue;
    if (count == 0 ||
        array->size() % (static_cast<size_t>(count) * base::kPackedNumberBytes) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("array of ", array->size(), " bytes for ", count, " positions"));
    }
  }
  const size_t row = static_cast<size_t>(count) * base::kPackedNumberBytes;
  for (const std::string* array : {&bytes->raw, &bytes->scaled, &bytes->entropy}) {
    if (!array->empty() && array->size() != row) {
      return absl::InvalidArgumentError(
          absl::StrCat("array of ", array->size(), " bytes, expected ", row));
    }
  }
  if (bytes->top_ids.size() != bytes->top_logprobs.size()) {
    return absl::InvalidArgumentError("top_ids and top_logprobs differ in length");
  }
  return absl::OkStatus();
}

uint32_t PositionDigest(const ArrayRefs& arrays, int64_t count, int64_t index, uint32_t id) {
  uint64_t hash = id;
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i]->empty()) continue;
    const size_t width = arrays[i]->size() / static_cast<size_t>(count);
    hash = base::Hash64({arrays[i]->data() + static_cast<size_t>(index) * width, width},
                        hash * arrays.size() + i);
  }
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

void CutFront(LogprobBytes* bytes, int64_t count, int64_t cut) {
  for (std::string* array : Arrays(bytes)) {
    if (array->empty()) continue;
    array->erase(0, array->size() / static_cast<size_t>(count) * static_cast<size_t>(cut));
  }
}

absl::Status Differs(const char* what, int64_t position) {
  return absl::DataLossError(
      absl::StrCat(what, " position ", position, " came again with other bits"));
}

}  // namespace

DeliveryLog::DeliveryLog(const SequenceSpec& spec)
    : output_ids_(spec.generated_ids),
      output_begin_(spec.deliver_output_from),
      prompt_begin_(spec.deliver_prompt_from),
      prompt_end_(spec.deliver_prompt_from == 0 ? 0
                                                : static_cast<int64_t>(spec.prompt_ids().size())),
      next_output_(spec.deliver_output_from),
      next_prompt_(spec.deliver_prompt_from) {}

absl::StatusOr<DeliveryLog::Accepted> DeliveryLog::Accept(SequenceDelta* delta) {
  if (delta->token_ids.size() % base::kPackedNumberBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("token_ids of ", delta->token_ids.size(), " bytes"));
  }
  const int64_t count = base::PackedCount(delta->token_ids);
  if (delta->token_begin < 0 || delta->prompt_begin < 0 || delta->prompt_count < 0) {
    return absl::InvalidArgumentError("negative position");
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(&delta->logprobs, count));
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(&delta->prompt_logprobs, delta->prompt_count));
  if (count > 0 && delta->token_begin > next_output_) {
    return absl::OutOfRangeError(absl::StrCat("output position ", delta->token_begin,
                                              " came where ", next_output_, " was due"));
  }
  if (delta->prompt_count > 0 && (prompt_end_ == 0 || delta->prompt_begin > next_prompt_ ||
                                  delta->prompt_begin + delta->prompt_count > prompt_end_)) {
    return absl::OutOfRangeError(absl::StrCat("prompt positions [", delta->prompt_begin, ", ",
                                              delta->prompt_begin + delta->prompt_count,
                                              ") came where ", next_prompt_, " was due"));
  }
  // Everything is compared before anything is taken.
  LOCKSTEP_RETURN_IF_ERROR(CompareOutputs(delta, count));
  LOCKSTEP_RETURN_IF_ERROR(ComparePrompt(delta));
  Accepted accepted;
  const int64_t output_cut = std::clamp<int64_t>(next_output_ - delta->token_begin, 0, count);
  TakeOutputs(delta, count, output_cut);
  const int64_t prompt_cut =
      std::clamp<int64_t>(next_prompt_ - delta->prompt_begin, 0, delta->prompt_count);
  TakePrompt(delta, prompt_cut);
  accepted.new_tokens = count - output_cut;
  accepted.new_prompt_positions = delta->prompt_count;
  accepted.duplicate_positions = output_cut + prompt_cut;
  return accepted;
}

absl::Status DeliveryLog::CompareOutputs(SequenceDelta* delta, int64_t count) const {
  const ArrayRefs arrays = Arrays(&delta->logprobs);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = delta->token_begin + i;
    if (position >= static_cast<int64_t>(output_ids_.size())) break;
    const uint32_t id = base::PackedAt<uint32_t>(delta->token_ids, i);
    if (id != output_ids_[static_cast<size_t>(position)]) return Differs("output", position);
    if (position < output_begin_ || position >= next_output_) continue;
    const uint32_t digest = PositionDigest(arrays, count, i, id);
    if (digest != output_digests_[static_cast<size_t>(position - output_begin_)]) {
      return Differs("output", position);
    }
  }
  return absl::OkStatus();
}

absl::Status DeliveryLog::ComparePrompt(SequenceDelta* delta) const {
  const ArrayRefs arrays = Arrays(&delta->prompt_logprobs);
  const int64_t end = std::min(delta->prompt_begin + delta->prompt_count, next_prompt_);
  for (int64_t position = std::max(delta->prompt_begin, prompt_begin_); position < end;
       ++position) {
    const uint32_t digest =
        PositionDigest(arrays, delta->prompt_count, position - delta->prompt_begin, 0);
    if (digest != prompt_digests_[static_cast<size_t>(position - prompt_begin_)]) {
      return Differs("prompt", position);
    }
  }
  return absl::OkStatus();
}

void DeliveryLog::TakeOutputs(SequenceDelta* delta, int64_t count, int64_t cut) {
  if (cut > 0) {
    CutFront(&delta->logprobs, count, cut);
    delta->token_ids.erase(0, static_cast<size_t>(cut) * base::kPackedNumberBytes);
    delta->token_begin += cut;
  }
  const int64_t taken = count - cut;
  const ArrayRefs arrays = Arrays(&delta->logprobs);
  for (int64_t i = 0; i < taken; ++i) {
    const uint32_t id = base::PackedAt<uint32_t>(delta->token_ids, i);
    output_digests_.push_back(PositionDigest(arrays, taken, i, id));
    if (next_output_ == static_cast<int64_t>(output_ids_.size())) output_ids_.push_back(id);
    ++next_output_;
  }
}

void DeliveryLog::TakePrompt(SequenceDelta* delta, int64_t cut) {
  if (cut > 0) {
    CutFront(&delta->prompt_logprobs, delta->prompt_count, cut);
    delta->prompt_begin += cut;
    delta->prompt_count -= cut;
  }
  const ArrayRefs arrays = Arrays(&delta->prompt_logprobs);
  for (int64_t i = 0; i < delta->prompt_count; ++i) {
    prompt_digests_.push_back(PositionDigest(arrays, delta->prompt_count, i, 0));
  }
  next_prompt_ += delta->prompt_count;
}

}  // namespace lockstep::router
