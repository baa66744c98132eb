// An answer that is cut anywhere and resumed equals the uninterrupted one in every field: the way a
// trainer continues a partial rollout, and the way the cluster continues after a lost worker.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::GenerateAll;
using testing::SharedClusterTest;

class ResumeTest : public SharedClusterTest<ResumeTest> {
 protected:
  // Runs `request` whole, then once for every number of given tokens.
  static void ExpectEqualFromEveryPosition(v1::GenerateRequest request) {
    const auto whole = GenerateAll(cluster_->stub(), {request})[0];
    ASSERT_TRUE(whole.ok()) << whole.status();
    const std::string& ids = whole->samples(0).token_ids();
    std::vector<v1::GenerateRequest> resumed;
    for (size_t given = 0; given <= ids.size() / 4; ++given) {
      v1::GenerateRequest rest = request;
      for (size_t i = 0; i < given; ++i) {
        uint32_t id;
        std::memcpy(&id, ids.data() + 4 * i, 4);
        rest.add_generated_ids(id);
      }
      resumed.push_back(std::move(rest));
    }
    const auto answers = GenerateAll(cluster_->stub(), resumed);
    for (size_t given = 0; given < answers.size(); ++given) {
      ASSERT_TRUE(answers[given].ok()) << given << ": " << answers[given].status();
      EXPECT_EQ(Bits(*answers[given]), Bits(*whole)) << "resumed after " << given;
    }
  }

  static v1::GenerateRequest Request(const std::string& prompt) {
    v1::GenerateRequest request;
    request.set_prompt_text(prompt);
    request.set_seed(11);
    request.mutable_stop()->set_max_new_tokens(200);
    return request;
  }
};

TEST_F(ResumeTest, InsideMultiByteCharacters) {
  v1::GenerateRequest request = Request("Say it with emoji:");
  request.mutable_stop()->set_ignore_eos(true);
  ExpectEqualFromEveryPosition(request);
}

TEST_F(ResumeTest, InsideStopStringsOverSeveralTokens) {
  v1::GenerateRequest request = Request("12+34*2=");
  request.mutable_stop()->add_stop_strings("answer 8");
  request.mutable_stop()->add_stop_strings("; answer 1234");
  ExpectEqualFromEveryPosition(request);
}

TEST_F(ResumeTest, AroundTheEarliestPermittedStop) {
  v1::GenerateRequest request = Request("12+34*2=");
  request.mutable_stop()->set_min_new_tokens(60);
  request.mutable_stop()->add_stop_strings(";");
  ExpectEqualFromEveryPosition(request);
}

TEST_F(ResumeTest, WithEveryKindOfLogprobAndAScoredPrompt) {
  v1::GenerateRequest request = Request("Tell me a story:");
  request.mutable_sampling()->set_temperature(0.7);
  request.mutable_sampling()->set_top_p(0.9);
  request.mutable_logprobs()->set_top_count(5);
  request.mutable_logprobs()->add_chosen_ids(3);
  request.mutable_logprobs()->add_chosen_ids(499);
  request.mutable_logprobs()->set_entropy(true);
  request.mutable_logprobs()->set_prompt_from(1);
  request.mutable_logprobs()->set_prompt_details(true);
  ExpectEqualFromEveryPosition(request);
}

TEST_F(ResumeTest, WithPenaltiesThatCountWhatWasGenerated) {
  v1::GenerateRequest request = Request("Count to 30:");
  request.mutable_sampling()->set_repetition_penalty(1.2f);
  request.mutable_sampling()->set_frequency_penalty(0.3f);
  request.mutable_sampling()->set_presence_penalty(0.2f);
  request.mutable_stop()->set_ignore_eos(true);
  ExpectEqualFromEveryPosition(request);
}

}  // namespace
}  // namespace lockstep
