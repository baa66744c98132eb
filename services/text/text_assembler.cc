#include "services/text/text_assembler.h"

namespace lockstep::text {

std::optional<StopMatch> TextAssembler::Feed(int32_t id, std::string* text) {
  if (stop_.has_value()) return stop_;
  stop_ = stop_matcher_.FeedId(id);
  if (stop_.has_value()) {
    stop_matcher_.Release(text);
    if (stop_matcher_.stops().options().keeps_stop_in_text) detokenizer_.Feed(id, text);
    return stop_;
  }
  added_.clear();
  detokenizer_.Feed(id, &added_);
  stop_ = stop_matcher_.FeedText(added_, text);
  if (stop_.has_value()) detokenizer_.ClearTail();
  return stop_;
}

}  // namespace lockstep::text
