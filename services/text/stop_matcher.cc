#include "services/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/text/utf8.h"

namespace lockstep::text {
namespace {

std::vector<uint32_t> Borders(std::string_view bytes) {
  std::vector<uint32_t> borders(bytes.size(), 0);
  uint32_t length = 0;
  for (size_t i = 1; i < bytes.size(); ++i) {
    while (length > 0 && bytes[i] != bytes[length]) length = borders[length - 1];
    if (bytes[i] == bytes[length]) ++length;
    borders[i] = length;
  }
  return borders;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StopSet>> StopSet::Create(StopOptions options) {
  for (size_t i = 0; i < options.stop_strings.size(); ++i) {
    const std::string& text = options.stop_strings[i];
    if (text.empty() || !IsValidUtf8(text)) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop_strings[", i, "] is ", text.empty() ? "empty" : "not valid UTF-8"));
    }
  }
  return std::make_shared<const StopSet>(Private{}, std::move(options));
}

StopSet::StopSet(Private, StopOptions options) : options_(std::move(options)) {
  std::sort(options_.stop_ids.begin(), options_.stop_ids.end());
  std::sort(options_.eos_ids.begin(), options_.eos_ids.end());
  for (const std::string& text : options_.stop_strings) patterns_.push_back({text, Borders(text)});
}

std::optional<StopMatch::Kind> StopSet::KindOf(int32_t id) const {
  const auto has = [id](const std::vector<int32_t>& ids) {
    return std::binary_search(ids.begin(), ids.end(), id);
  };
  if (has(options_.stop_ids)) return StopMatch::Kind::kStopId;
  if (!options_.ignores_eos && has(options_.eos_ids)) return StopMatch::Kind::kEosId;
  return std::nullopt;
}

StopMatcher::StopMatcher(std::shared_ptr<const StopSet> stops)
    : stops_(std::move(stops)), matched_(stops_->patterns_.size(), 0) {}

std::optional<StopMatch> StopMatcher::FeedId(int32_t id) {
  ++token_count_;
  last_id_ = id;
  if (!MayStop()) return std::nullopt;
  const std::optional<StopMatch::Kind> kind = stops_->KindOf(id);
  if (!kind.has_value()) return std::nullopt;
  return StopMatch{.kind = *kind, .id = id};
}

int32_t StopMatcher::Advance(char byte) {
  int32_t winner = -1;
  for (size_t i = 0; i < matched_.size(); ++i) {
    const StopSet::Pattern& pattern = stops_->patterns_[i];
    uint32_t& length = matched_[i];
    while (length > 0 && pattern.bytes[length] != byte) length = pattern.borders[length - 1];
    if (pattern.bytes[length] == byte) ++length;
    if (length < pattern.bytes.size()) continue;
    length = pattern.borders[length - 1];
    const bool is_longer =
        winner < 0 || pattern.bytes.size() > stops_->patterns_[winner].bytes.size();
    if (is_longer) winner = static_cast<int32_t>(i);
  }
  return winner;
}

std::optional<StopMatch> StopMatcher::FeedText(std::string_view added, std::string* text) {
  if (matched_.empty()) {
    text->append(added);
    return std::nullopt;
  }
  const bool may_stop = MayStop();
  for (const char byte : added) {
    held_.push_back(byte);
    const int32_t winner = Advance(byte);
    if (winner < 0 || !may_stop) continue;
    if (!stops_->options().keeps_stop_in_text) {
      held_.resize(held_.size() - stops_->patterns_[winner].bytes.size());
    }
    Release(text);
    return StopMatch{StopMatch::Kind::kStopString, last_id_, winner};
  }
  const uint32_t waiting = *std::max_element(matched_.begin(), matched_.end());
  text->append(held_, 0, held_.size() - waiting);
  held_.erase(0, held_.size() - waiting);
  return std::nullopt;
}

void StopMatcher::Release(std::string* text) {
  text->append(held_);
  held_.clear();
}

}  // namespace lockstep::text
