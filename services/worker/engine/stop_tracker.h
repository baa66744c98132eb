#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "services/text/stop_matcher.h"
#include "services/text/text_assembler.h"
#include "services/text/tokenizer.h"
#include "services/worker/engine/sequence_start.h"

namespace lockstep::worker {

using MatchedStop = std::variant<std::monostate, int32_t, std::string>;

// Decides after each output token whether the sequence stops. Its state is a function of the tokens
// added so far, so adding generated ids again restores it. Text is assembled only when there are
// stop strings; without a tokenizer there can be none.
//
// min_new_tokens: the token at output index min_new_tokens is the first that can stop. Stop ids are
// banned from being drawn before it (see Sequence), so that a sequence does not carry an ignored
// end inside; a stop string that completes before it is passed over.
class StopTracker {
 public:
  static absl::StatusOr<StopTracker> Create(const SequenceParameters& parameters,
                                            std::shared_ptr<const text::Tokenizer> tokenizer);

  // What the next output token stopped, if it did. No token may be added after a stop.
  std::optional<MatchedStop> Add(int32_t id);

 private:
  explicit StopTracker(std::shared_ptr<const text::StopSet> stops);

  std::shared_ptr<const text::StopSet> stops_;
  text::StopMatcher ids_only_;
  std::optional<text::TextAssembler> assembler_;  // With stop strings.
  std::string text_;                              // Of the last token; a member to keep its memory.
};

}  // namespace lockstep::worker
