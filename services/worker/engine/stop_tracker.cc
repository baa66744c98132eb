#include "services/worker/engine/stop_tracker.h"

#include <utility>

#include "common/base/status_macros.h"

namespace lockstep::worker {

absl::StatusOr<StopTracker> StopTracker::Create(const SequenceParameters& parameters,
                                                std::shared_ptr<const text::Tokenizer> tokenizer) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto stops,
                            text::StopSet::Create({.stop_ids = parameters.stop_ids,
                                                   .stop_strings = parameters.stop_strings,
                                                   .new_tokens_min = parameters.min_new_tokens}));
  StopTracker tracker(std::move(stops));
  if (!parameters.stop_strings.empty()) {
    tracker.assembler_.emplace(std::move(tokenizer), tracker.stops_,
                               /*skips_special_tokens=*/parameters.skip_special_tokens);
  }
  return tracker;
}

StopTracker::StopTracker(std::shared_ptr<const text::StopSet> stops)
    : stops_(std::move(stops)), ids_only_(stops_) {}

std::optional<MatchedStop> StopTracker::Add(int32_t id) {
  text_.clear();
  const std::optional<text::StopMatch> match =
      assembler_.has_value() ? assembler_->Feed(id, &text_) : ids_only_.FeedId(id);
  if (!match.has_value()) return std::nullopt;
  if (match->kind == text::StopMatch::Kind::kStopString) {
    return stops_->options().stop_strings[match->string_index];
  }
  return match->id;
}

}  // namespace lockstep::worker
