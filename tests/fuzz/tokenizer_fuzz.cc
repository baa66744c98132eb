// Fuzzes reading a tokenizer.json and encoding text with it. An input is a kind ('F' or 'P'), JSON,
// a zero byte and text. With 'F' the JSON is the file; with 'P' it is a merge patch (RFC 7396) on a
// small valid file, because bytes alone seldom get past the check that all 256 bytes have a token.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "nlohmann/json.hpp"
#include "services/text/text_assembler.h"
#include "services/text/tokenizer.h"
#include "services/text/utf8.h"
#include "tests/support/handmade_tokenizer.h"

namespace lockstep::text {
namespace {

std::string PatchedFile(std::string_view patch_text) {
  nlohmann::json document = HandmadeTokenizerJson({.merges = {{"h", "e"}, {"l", "l"}, {"he", "ll"}},
                                                   .special_tokens = {"<eos>"},
                                                   .added_tokens = {"<think>"}});
  const nlohmann::json patch = nlohmann::json::parse(patch_text, nullptr, false);
  if (!patch.is_discarded()) document.merge_patch(patch);
  return document.dump();
}

// What must be true of any tokenizer that was accepted, for any text.
void CheckText(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text) {
  const auto ids = tokenizer->Encode(text);
  if (!ids.ok()) return;
  const auto bytes = tokenizer->Decode(*ids);
  LOCKSTEP_CHECK(bytes.ok()) << bytes.status();
  const auto stops =
      StopSet::Create({.stop_strings = {"ell", "\u00E9<"}, .new_tokens_min = 1 << 20});
  TextAssembler assembler(tokenizer, *stops, /*skips_special_tokens=*/false);
  std::string assembled;
  for (const int32_t id : *ids) assembler.Feed(id, &assembled);
  assembler.Finish(&assembled);
  LOCKSTEP_CHECK(IsValidUtf8(assembled));
  assembled.append(assembler.text_tail_bytes());
  LOCKSTEP_CHECK(ReplaceInvalidUtf8(assembled) == ReplaceInvalidUtf8(*bytes));
}

}  // namespace
}  // namespace lockstep::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), input.size());
  const std::string_view json = input.substr(1, zero - 1);
  const std::string_view text = input.substr(std::min(zero + 1, input.size()));
  const auto tokenizer = lockstep::text::Tokenizer::Create(
      input[0] == 'P' ? lockstep::text::PatchedFile(json) : std::string(json));
  if (tokenizer.ok()) {
    lockstep::text::CheckText(*tokenizer, text);
  } else {
    LOCKSTEP_CHECK(tokenizer.status().code() == absl::StatusCode::kInvalidArgument);
  }
  return 0;
}
