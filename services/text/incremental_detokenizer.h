#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "services/text/tokenizer.h"
#include "services/text/utf8.h"

namespace lockstep::text {

// Turns ids into text as they come. Text is only ever appended, and is valid UTF-8 at every moment:
// the start of a character waits until the character is complete or can no longer become one. A
// pure function of the ids fed so far, so that a stream resumed elsewhere goes on identically once
// the earlier ids have been fed again. Not thread-safe.
class IncrementalDetokenizer {
 public:
  // With `skips_special_tokens`, tokens that the file marks as special have no text.
  IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skips_special_tokens)
      : tokenizer_(std::move(tokenizer)), skips_special_tokens_(skips_special_tokens) {}

  // Appends the text that `id` completes. An id without a token has no text.
  void Feed(int32_t id, std::string* text) {
    if (skips_special_tokens_ && tokenizer_->is_special(id)) return;
    stream_.Feed(tokenizer_->TokenBytes(id), text);
  }
  // The incomplete character at the end, at most 3 bytes: text_tail_bytes of an answer.
  std::string_view tail_bytes() const { return stream_.tail_bytes(); }
  void ClearTail() { stream_.ClearTail(); }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skips_special_tokens_;
  Utf8Stream stream_;
};

}  // namespace lockstep::text
