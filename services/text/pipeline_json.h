#pragma once

#include "absl/status/status.h"
#include "services/text/json_field.h"
#include "services/text/tokenizer_spec.h"

namespace lockstep::text {

// Reads normalizer, pre_tokenizer, post_processor and decoder of a tokenizer.json. The vocabulary
// and the added tokens of `spec` are filled already.
absl::Status ParsePipeline(const JsonField& root, TokenizerSpec* spec);

}  // namespace lockstep::text
