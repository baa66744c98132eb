#define PCRE2_CODE_UNIT_WIDTH 8
#include "services/text/split_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "services/text/pattern_translation.h"
#include "services/text/utf8.h"

namespace lockstep::text {
namespace {

constexpr uint32_t kMatchStepsMax = 20'000'000;
// The interpreter, which is used where the kernel forbids JIT, counts each step back in a long run.
constexpr uint32_t kMatchStepsPerByte = 16;
constexpr uint32_t kMatchHeapKib = 262'144;
constexpr size_t kJitStackBytesStart = size_t{64} << 10;
constexpr size_t kJitStackBytesMax = size_t{16} << 20;
constexpr uint32_t kParensNestMax = 64;

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

MatchScratch::MatchScratch()
    : context_(pcre2_match_context_create(nullptr)), data_(pcre2_match_data_create(1, nullptr)) {
  LOCKSTEP_CHECK(context_ != nullptr && data_ != nullptr) << "out of memory";
  pcre2_set_heap_limit(context_.get(), kMatchHeapKib);
}

void MatchScratch::FreeContext(pcre2_real_match_context_8* context) {
  pcre2_match_context_free(context);
}
void MatchScratch::FreeData(pcre2_real_match_data_8* data) { pcre2_match_data_free(data); }
void MatchScratch::FreeStack(pcre2_real_jit_stack_8* stack) { pcre2_jit_stack_free(stack); }
void SplitPattern::FreeCode(pcre2_real_code_8* code) { pcre2_code_free(code); }

absl::StatusOr<SplitPattern> SplitPattern::Create(const SplitRule& rule) {
  const auto error = [&rule](std::string_view what) {
    return absl::InvalidArgumentError(rule.where + ": pattern " + std::string(what));
  };
  absl::StatusOr<std::string> pattern =
      rule.is_literal ? EscapePattern(rule.pattern) : TranslatePattern(rule.pattern);
  if (!pattern.ok()) return error(std::string(pattern.status().message()));
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  LOCKSTEP_CHECK(context != nullptr) << "out of memory";
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), kParensNestMax);
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  int code_or_error = 0;
  PCRE2_SIZE offset = 0;
  std::shared_ptr<pcre2_code> code(pcre2_compile(Units(*pattern), pattern->size(), kOptions,
                                                 &code_or_error, &offset, context.get()),
                                   &FreeCode);
  if (code == nullptr) return error(absl::StrCat("at ", offset, ": ", ErrorText(code_or_error)));
  // Without JIT (some kernels forbid writable code) the interpreter gives the same matches, slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return SplitPattern(rule, std::move(code));
}

int SplitPattern::Match(std::string_view text, size_t start, MatchScratch* scratch) const {
  pcre2_match_context* context = scratch->context_.get();
  int result = pcre2_match(code_.get(), Units(text), text.size(), start, PCRE2_NO_UTF_CHECK,
                           scratch->data_.get(), context);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT && scratch->stack_ == nullptr) {
    scratch->stack_.reset(pcre2_jit_stack_create(kJitStackBytesStart, kJitStackBytesMax, nullptr));
    pcre2_jit_stack_assign(context, nullptr, scratch->stack_.get());
    result = pcre2_match(code_.get(), Units(text), text.size(), start, PCRE2_NO_UTF_CHECK,
                         scratch->data_.get(), context);
  }
  return result;
}

absl::Status SplitPattern::Split(std::string_view text, MatchScratch* scratch,
                                 std::vector<std::string_view>* pieces) const {
  const bool keeps_matches = !rule_.removes || rule_.removes_gaps;
  const bool keeps_gaps = !rule_.removes || !rule_.removes_gaps;
  const auto keep = [&](bool wanted, size_t begin, size_t end) {
    if (wanted && begin < end) pieces->push_back(text.substr(begin, end - begin));
  };
  const uint64_t steps_max = kMatchStepsMax + uint64_t{kMatchStepsPerByte} * text.size();
  pcre2_set_match_limit(scratch->context_.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(steps_max, UINT32_MAX)));
  size_t piece_begin = 0;
  size_t start = 0;
  while (start < text.size()) {
    const int result = Match(text, start, scratch);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          rule_.where, ": matching a text of ", text.size(), " bytes fails: ", ErrorText(result)));
    }
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(scratch->data_.get());
    keep(keeps_gaps, piece_begin, match[0]);
    keep(keeps_matches, match[0], match[1]);
    piece_begin = match[1];
    start = match[1];
    // An empty match is a cut; the search goes on behind the next character.
    if (match[0] == match[1] && start < text.size()) {
      start += ReadUtf8Unit(text.substr(start)).size_bytes;
    }
  }
  keep(keeps_gaps, piece_begin, text.size());
  return absl::OkStatus();
}

}  // namespace lockstep::text
