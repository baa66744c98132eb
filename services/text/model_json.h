#pragma once

#include "absl/status/status.h"
#include "services/text/json_field.h"
#include "services/text/tokenizer_spec.h"

namespace lockstep::text {

// Reads the `model` object of a tokenizer.json (type BPE) into vocabulary, merges and
// ignores_merges. All 256 single bytes must be in the vocabulary, so that any text has an encoding.
absl::Status ParseModel(const JsonField& model, TokenizerSpec* spec);

}  // namespace lockstep::text
