#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "services/text/incremental_detokenizer.h"
#include "services/text/stop_matcher.h"
#include "services/text/tokenizer.h"

namespace lockstep::text {

// The text side of one sequence: new ids in, text and the decision to stop out. Example:
//   TextAssembler assembler(tokenizer, stops, /*skips_special_tokens=*/true);
//   std::string text;
//   for (int32_t id : ids) if (assembler.Feed(id, &text)) break;
//   assembler.Finish(&text);
// Feed only new tokens, never the prompt's: text and counts begin at the first generated id. To
// resume a sequence, feed its earlier ids again; the text they give was sent already. Whatever is
// appended over a whole sequence is the same, however it is cut into calls. Not thread-safe.
class TextAssembler {
 public:
  TextAssembler(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const StopSet> stops,
                bool skips_special_tokens)
      : detokenizer_(std::move(tokenizer), skips_special_tokens), stop_matcher_(std::move(stops)) {}

  // Takes the next id, appends the text that may be shown, and says what ended the sequence, if
  // something did. The text of a stop id is left out, unless keeps_stop_in_text is set and the
  // token is not a skipped special one. After a stop, further ids are ignored and the same stop is
  // returned.
  std::optional<StopMatch> Feed(int32_t id, std::string* text);

  // The sequence ends here, for whatever reason: appends text that was held back because it might
  // have become a stop string. No id follows.
  void Finish(std::string* text) { stop_matcher_.Release(text); }

  // The incomplete character that the text ends before, at most 3 bytes: at the end of the ids, or
  // in front of a stop id. Empty after a stop string.
  std::string_view text_tail_bytes() const { return detokenizer_.tail_bytes(); }
  // Ids fed so far, the one that stopped included.
  int64_t token_count() const { return stop_matcher_.token_count(); }
  const std::optional<StopMatch>& stop() const { return stop_; }

 private:
  IncrementalDetokenizer detokenizer_;
  StopMatcher stop_matcher_;
  std::optional<StopMatch> stop_;
  // Text of one token on its way to the matcher; a member to keep its memory.
  std::string added_;
};

}  // namespace lockstep::text
