#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/text/tokenizer_spec.h"

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;
struct pcre2_real_jit_stack_8;

namespace lockstep::text {

// Memory that one caller needs to match patterns; make one for each call or thread, use it again
// for many texts.
class MatchScratch {
 public:
  MatchScratch();

 private:
  friend class SplitPattern;
  template <typename T, void (*kFree)(T*)>
  struct Free {
    void operator()(T* object) const { kFree(object); }
  };
  static void FreeContext(pcre2_real_match_context_8* context);
  static void FreeData(pcre2_real_match_data_8* data);
  static void FreeStack(pcre2_real_jit_stack_8* stack);

  std::unique_ptr<pcre2_real_match_context_8, Free<pcre2_real_match_context_8, FreeContext>>
      context_;
  std::unique_ptr<pcre2_real_match_data_8, Free<pcre2_real_match_data_8, FreeData>> data_;
  // Made when a match first needs more than the small stack that PCRE2 starts with.
  std::unique_ptr<pcre2_real_jit_stack_8, Free<pcre2_real_jit_stack_8, FreeStack>> stack_;
};

// A compiled split rule. Immutable, so any thread may use it, each with its own scratch.
class SplitPattern {
 public:
  // InvalidArgument naming the rule's place when the pattern is not supported.
  static absl::StatusOr<SplitPattern> Create(const SplitRule& rule);

  // Appends the pieces of `text` (valid UTF-8), none of them empty. InvalidArgument when the
  // pattern backtracks more than its limit: a bad pattern may not stop the process.
  absl::Status Split(std::string_view text, MatchScratch* scratch,
                     std::vector<std::string_view>* pieces) const;

 private:
  static void FreeCode(pcre2_real_code_8* code);

  SplitPattern(const SplitRule& rule, std::shared_ptr<pcre2_real_code_8> code)
      : rule_(rule), code_(std::move(code)) {}
  // PCRE2's answer for the first match at or after `start`: positive, "no match" or an error.
  int Match(std::string_view text, size_t start, MatchScratch* scratch) const;

  SplitRule rule_;
  std::shared_ptr<pcre2_real_code_8> code_;
};

}  // namespace lockstep::text
