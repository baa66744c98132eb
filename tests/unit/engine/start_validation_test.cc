#include "services/worker/engine/start_validation.h"

#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

constexpr StartLimits kLimits = {.split_kv_size = 32,
                                 .context_tokens_max = 100,
                                 .kv_tokens_max = 90,
                                 .vocabulary = 64,
                                 .has_tokenizer = false};

SequenceStart GoodStart() {
  SequenceStart start;
  start.prompt_ids = {1, 2, 3};
  start.generated_ids = {4, 5};
  start.plan = {.split_kv_size = 32, .length = 5};
  start.parameters.max_new_tokens = 10;
  start.parameters.min_new_tokens = 2;
  start.deliver_output_from = 2;
  start.deliver_prompt_from = 3;
  return start;
}

struct BadCase {
  const char* message;
  std::function<void(SequenceStart*)> spoil;
};

TEST(StartValidationTest, AGoodStartPasses) {
  EXPECT_TRUE(ValidateStart(kLimits, GoodStart()).ok());
}

TEST(StartValidationTest, NamesWhatIsWrong) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  const std::vector<BadCase> cases = {
      {"prompt_ids[1] is -1", [](SequenceStart* s) { s->prompt_ids[1] = -1; }},
      {"prompt_ids[2] is 64", [](SequenceStart* s) { s->prompt_ids[2] = 64; }},
      {"generated_ids[0] is 65", [](SequenceStart* s) { s->generated_ids[0] = 65; }},
      {"stop_ids[0] is 2147483647", [](SequenceStart* s) { s->parameters.stop_ids = {kMax}; }},
      {"chosen_ids[1] is -5",
       [](SequenceStart* s) {
         s->parameters.chosen_ids = {0, -5};
       }},
      {"logit_bias[0] is 64", [](SequenceStart* s) { s->parameters.logit_bias = {{.id = 64}}; }},
      {"offset 16 would be misaligned", [](SequenceStart* s) { s->plan.split_kv_size = 16; }},
      {"ends at offset 4", [](SequenceStart* s) { s->plan.length = 4; }},
      {"prompt_ids is empty",
       [](SequenceStart* s) {
         s->prompt_ids.clear();
         s->plan.length = 2;
       }},
      {"3 prompt tokens and max_new_tokens 98 exceed the context of 100",
       [](SequenceStart* s) { s->parameters.max_new_tokens = 98; }},
      {"exceed the context",
       [](SequenceStart* s) {
         s->parameters.max_new_tokens = std::numeric_limits<int64_t>::max();
       }},
      {"need more KV than the 90 tokens",
       [](SequenceStart* s) { s->parameters.max_new_tokens = 88; }},
      {"max_new_tokens is 1", [](SequenceStart* s) { s->parameters.max_new_tokens = 1; }},
      {"min_new_tokens is 11", [](SequenceStart* s) { s->parameters.min_new_tokens = 11; }},
      {"min_new_tokens is -1", [](SequenceStart* s) { s->parameters.min_new_tokens = -1; }},
      {"deliver_output_from is 3", [](SequenceStart* s) { s->deliver_output_from = 3; }},
      {"deliver_prompt_from is 4", [](SequenceStart* s) { s->deliver_prompt_from = 4; }},
      {"top_count is 65", [](SequenceStart* s) { s->parameters.top_count = 65; }},
      {"stop_strings need a tokenizer",
       [](SequenceStart* s) { s->parameters.stop_strings = {"a"}; }},
  };
  for (const BadCase& bad : cases) {
    SequenceStart start = GoodStart();
    bad.spoil(&start);
    const absl::Status status = ValidateStart(kLimits, start);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace lockstep::worker
