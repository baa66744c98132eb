#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "services/text/tokenizer_spec.h"

namespace lockstep::text {

// Larger files are refused. Known ones have 3 to 40 MB.
inline constexpr size_t kTokenizerFileBytesMax = size_t{64} << 20;

// Reads Hugging Face's tokenizer.json. Supported: model BPE over the byte alphabet; normalizer null
// or NFC; pre-tokenizers Split, Digits, ByteLevel and sequences that end with ByteLevel;
// post-processors ByteLevel and TemplateProcessing; decoder ByteLevel. Anything else, and any field
// that is not known, is refused with InvalidArgument naming `file` and the field. `padding` and
// `truncation` describe a trainer's batches and are read past: text is never cut or padded here.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(std::string_view bytes, const std::string& file);

}  // namespace lockstep::text
