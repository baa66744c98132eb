#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::text {

struct StopOptions {
  // Ids that end a sequence, as the request says.
  std::vector<int32_t> stop_ids;
  // Ids that end a sequence, as the model's config says.
  std::vector<int32_t> eos_ids;
  bool ignores_eos = false;
  // Strings that end a sequence. Their count and length are bounded by the caller.
  std::vector<std::string> stop_strings;
  // Only a token that follows at least this many new tokens can end the sequence: with 5, the sixth
  // new token is the first that can. So the answer has this many tokens beside the one that stops.
  int64_t new_tokens_min = 0;
  // Keep the matched stop string in the text.
  bool keeps_stop_in_text = false;
};

// What ended a sequence.
struct StopMatch {
  enum class Kind { kEosId, kStopId, kStopString };
  Kind kind;
  // The id of kEosId and kStopId; the token that completed the string of kStopString.
  int32_t id = 0;
  // Index into stop_strings; -1 for ids.
  int32_t string_index = -1;
  friend bool operator==(const StopMatch&, const StopMatch&) = default;
};

// The compiled stops of a request, shared by its samples. Immutable; thread-safe.
class StopSet {
 private:
  struct Private {};

 public:
  // InvalidArgument naming the index of a stop string that is empty or not valid UTF-8 (text is
  // always valid, so such a string could never match).
  static absl::StatusOr<std::shared_ptr<const StopSet>> Create(StopOptions options);

  const StopOptions& options() const { return options_; }
  // The kind of stop that this id is, if any. An id that is both is a kStopId.
  std::optional<StopMatch::Kind> KindOf(int32_t id) const;

  // For Create only.
  StopSet(Private, StopOptions options);

 private:
  friend class StopMatcher;
  struct Pattern {
    std::string bytes;
    // Of each prefix, the length of its longest proper prefix that is also its suffix (Knuth,
    // Morris, Pratt).
    std::vector<uint32_t> borders;
  };

  StopOptions options_;
  std::vector<Pattern> patterns_;
};

// Decides, token by token, whether a sequence ends, and which of its text may be shown.
//
// Strings are looked for in the text that the client gets, so a match may lie across tokens and
// never in the text of a skipped token. Of several matches the one that is complete first wins,
// counted in bytes; of those complete at the same byte the longest, then the lowest index: where
// tokens are cut does not matter. An id that is a stop wins over a string that its text would
// complete. The text is cut where the match begins (behind it with keeps_stop_in_text); ids are
// kept up to the token that completed it.
//
// A string that becomes complete while the sequence is too short to stop (new_tokens_min) stays in
// the text and is passed over for good. One that only begins there, and becomes complete later,
// counts. Ids that come too early are ordinary tokens.
//
// Text that may still turn out to be the beginning of a stop string is held back. The state is a
// pure function of what was fed, so feeding earlier tokens again restores it. Not thread-safe.
class StopMatcher {
 public:
  explicit StopMatcher(std::shared_ptr<const StopSet> stops);

  // Counts one new token and says whether its id ends the sequence.
  std::optional<StopMatch> FeedId(int32_t id);
  // Takes the text that the last counted token added; appends to `text` what may be shown. On a
  // match that is all the text there will be.
  std::optional<StopMatch> FeedText(std::string_view added, std::string* text);
  // Appends what was held back: the sequence ends for another reason.
  void Release(std::string* text);

  const StopSet& stops() const { return *stops_; }
  // New tokens counted so far.
  int64_t token_count() const { return token_count_; }

 private:
  bool MayStop() const { return token_count_ > stops_->options().new_tokens_min; }
  // Moves every pattern on by one byte. The index of the pattern that wins at this byte, or -1.
  int32_t Advance(char byte);

  std::shared_ptr<const StopSet> stops_;
  // Bytes of each pattern that the end of the text matches.
  std::vector<uint32_t> matched_;
  std::string held_;
  int64_t token_count_ = 0;
  int32_t last_id_ = 0;
};

}  // namespace lockstep::text
