// Text of answers: stops that lie across tokens, characters that come in several, and the way
// between text and ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/client/arrays.h"
#include "tests/support/rollout_calls.h"
#include "tests/support/shared_cluster_test.h"

namespace lockstep {
namespace {

using client::ReadIds;
using testing::CallNow;
using testing::GenerateAll;
using ::testing::HasSubstr;
using testing::RolloutStub;
using testing::SharedClusterTest;

constexpr char kReplacement[] = "\xEF\xBF\xBD";

v1::GenerateRequest Prompt(const std::string& text, uint64_t seed, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text(text);
  request.set_seed(seed);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

class TextTest : public SharedClusterTest<TextTest> {
 protected:
  static v1::Sample Generate(const v1::GenerateRequest& request) {
    const auto answer = GenerateAll(stub(), {request})[0];
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->samples(0) : v1::Sample();
  }
  static v1::DetokenizeResponse Detokenize(const std::vector<uint32_t>& ids) {
    v1::DetokenizeRequest request;
    *request.mutable_ids() = client::ToIdField(ids);
    request.set_skip_special_tokens(true);
    const auto response = CallNow(stub(), &RolloutStub::Detokenize, request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::DetokenizeResponse();
  }
  static std::string TextOf(const v1::Sample& sample, size_t tokens) {
    std::vector<uint32_t> ids = ReadIds(sample.token_ids());
    ids.resize(tokens);
    return Detokenize(ids).text();
  }
};

TEST_F(TextTest, StopStringsAcrossTokensCutTextAndKeepTheTokenThatCompletedThem) {
  const v1::Sample whole = Generate(Prompt("Tell me a story:", 1, 120));
  const std::string& text = whole.text();
  const size_t tokens = whole.token_ids().size() / 4;
  size_t across_tokens = 0;
  for (size_t begin = 1; begin + 12 < text.size(); begin += 9) {
    // Only where both ends lie between characters: a stop string is UTF-8.
    const std::string stop = text.substr(begin, 7);
    if ((stop[0] & 0xC0) == 0x80 || (text[begin + 7] & 0xC0) == 0x80) continue;
    const size_t found = text.find(stop);
    size_t completed = 1;
    while (TextOf(whole, completed).size() < found + stop.size()) ++completed;
    ASSERT_LE(completed, tokens);
    across_tokens += TextOf(whole, completed - 1).size() > found;

    v1::GenerateRequest request = Prompt("Tell me a story:", 1, 120);
    request.mutable_stop()->add_stop_strings("never in the text");
    request.mutable_stop()->add_stop_strings(stop);
    const v1::Sample stopped = Generate(request);
    EXPECT_EQ(stopped.finish_reason(), v1::FINISH_REASON_STOP) << stop;
    EXPECT_EQ(stopped.matched_stop().string(), stop);
    EXPECT_EQ(stopped.text(), text.substr(0, found)) << stop;
    EXPECT_EQ(stopped.token_ids(), whole.token_ids().substr(0, 4 * completed)) << stop;
    EXPECT_EQ(stopped.logprobs().raw(), whole.logprobs().raw().substr(0, 4 * completed)) << stop;
    EXPECT_TRUE(stopped.text_tail_bytes().empty());
  }
  EXPECT_GE(across_tokens, 3u);
}

TEST_F(TextTest, StopIdsEndAtTheFirstOneAndAreNamed) {
  const v1::Sample whole = Generate(Prompt("Tell me a story:", 2, 100));
  const std::vector<uint32_t> ids = ReadIds(whole.token_ids());
  for (const size_t at : {0, 1, 17, 60, 99}) {
    v1::GenerateRequest request = Prompt("Tell me a story:", 2, 100);
    const uint32_t later = ids[99];
    request.mutable_stop()->add_stop_ids(later);
    request.mutable_stop()->add_stop_ids(ids[at]);
    const size_t first = std::find_if(ids.begin(), ids.end(),
                                      [&](uint32_t id) { return id == ids[at] || id == later; }) -
                         ids.begin();
    const v1::Sample stopped = Generate(request);
    EXPECT_EQ(stopped.finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(stopped.matched_stop().id(), ids[first]);
    // The stop id stays among the ids, with its logprob; its text goes.
    EXPECT_EQ(stopped.token_ids(), whole.token_ids().substr(0, 4 * (first + 1)));
    EXPECT_EQ(stopped.logprobs().raw(), whole.logprobs().raw().substr(0, 4 * (first + 1)));
    EXPECT_EQ(stopped.text(), TextOf(whole, first));
    request.mutable_stop()->set_keep_stop_in_text(true);
    EXPECT_EQ(Generate(request).text(), TextOf(whole, first + 1));
  }
}

TEST_F(TextTest, EveryEndOfSequenceIdOfTheModelStops) {
  const auto info = CallNow(stub(), &RolloutStub::GetServerInfo, {});
  ASSERT_TRUE(info.ok()) << info.status();
  ASSERT_GE(info->eos_ids_size(), 2);
  for (const int64_t eos : info->eos_ids()) {
    v1::GenerateRequest request = Prompt("Tell me a story:", 3, 20);
    request.mutable_stop()->set_ignore_eos(false);
    request.mutable_stop()->set_min_new_tokens(5);
    v1::LogitBias* bias = request.mutable_sampling()->add_logit_bias();
    bias->set_id(eos);
    bias->set_bias(1000);
    const v1::Sample sample = Generate(request);
    EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(sample.matched_stop().id(), eos);
    EXPECT_GE(sample.token_ids().size(), 4 * 5u);
    request.mutable_stop()->set_ignore_eos(true);
    EXPECT_EQ(Generate(request).finish_reason(), v1::FINISH_REASON_LENGTH);
  }
}

TEST_F(TextTest, StreamsNeverShowPartOfACharacter) {
  int checked = 0, waited = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const v1::GenerateRequest request =
        Prompt(seed % 2 == 0 ? "Say it with emoji:" : "Greet the world:", seed, 50);
    grpc::ClientContext context;
    auto stream = stub()->GenerateStream(&context, request);
    std::string text, tail;
    std::vector<uint32_t> ids;
    bool saw_replacement = false;
    v1::GenerateDelta delta;
    while (stream->Read(&delta)) {
      // protobuf refuses a string that is not UTF-8, so a cut character could only show as U+FFFD.
      saw_replacement |= delta.text().find(kReplacement) != std::string::npos;
      for (const uint32_t id : ReadIds(delta.token_ids())) ids.push_back(id);
      waited += !delta.token_ids().empty() && delta.text().empty();
      text += delta.text();
      if (delta.has_finished()) tail = delta.finished().text_tail_bytes();
    }
    ASSERT_TRUE(stream->Finish().ok());
    const v1::DetokenizeResponse whole = Detokenize(ids);
    EXPECT_EQ(text, whole.text()) << seed;
    EXPECT_EQ(tail, whole.text_tail_bytes()) << seed;
    // A model may well draw bytes that are no character at all; then the mark is the truth.
    if (whole.text().find(kReplacement) != std::string::npos) continue;
    EXPECT_FALSE(saw_replacement) << seed;
    ++checked;
  }
  EXPECT_GE(checked, 15);
  EXPECT_GE(waited, 15);
}

TEST_F(TextTest, TextThatWouldHoldUpOthersIsRefusedByItsSize) {
  constexpr size_t kBytesMax = size_t{1} << 20;
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(kBytesMax, 'a'));
  EXPECT_TRUE(CallNow(stub(), &RolloutStub::Tokenize, tokenize).ok());
  tokenize.mutable_text()->push_back('a');
  const absl::Status text = CallNow(stub(), &RolloutStub::Tokenize, tokenize).status();
  EXPECT_EQ(text.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(text.message()), HasSubstr("text: 1048577 bytes"));

  v1::DetokenizeRequest detokenize;
  detokenize.mutable_ids()->Resize((1 << 18) + 1, 5);
  const absl::Status ids = CallNow(stub(), &RolloutStub::Detokenize, detokenize).status();
  EXPECT_EQ(ids.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.message()), HasSubstr("ids: 262145"));

  v1::GenerateRequest generate = Prompt("", 1, 0);
  generate.set_prompt_text(tokenize.text());
  const absl::Status prompt = CallNow(stub(), &RolloutStub::Generate, generate).status();
  EXPECT_EQ(prompt.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(prompt.message()), HasSubstr("prompt_text: 1048577 bytes"));

  v1::EstimateRequest texts;
  texts.add_requests()->set_prompt_text(std::string(kBytesMax, 'a'));
  texts.add_requests()->set_prompt_text("a");
  EXPECT_EQ(CallNow(stub(), &RolloutStub::Estimate, texts).status().code(),
            absl::StatusCode::kInvalidArgument);
  v1::EstimateRequest many;
  for (int i = 0; i <= 1 << 14; ++i) many.add_requests();
  const absl::Status count = CallNow(stub(), &RolloutStub::Estimate, many).status();
  EXPECT_EQ(count.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(count.message()), HasSubstr("requests: 16385"));
}

TEST_F(TextTest, LongTextsGiveWhatTheirIdsGiveOnEveryRpc) {
  std::string text;
  while (text.size() < 6000) absl::StrAppend(&text, " answer ", text.size(), ";");
  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  const auto ids = CallNow(stub(), &RolloutStub::Tokenize, tokenize);
  ASSERT_TRUE(ids.ok()) << ids.status();
  const v1::GenerateRequest by_text = Prompt(text, 5, 20);
  v1::GenerateRequest by_ids = by_text;
  *by_ids.mutable_prompt_ids()->mutable_ids() = client::ToIdField(ReadIds(ids->ids()));
  const v1::Sample expected = Generate(by_ids);
  EXPECT_EQ(testing::Bits(Generate(by_text)), testing::Bits(expected));

  grpc::ClientContext stream_context;
  auto stream = stub()->GenerateStream(&stream_context, by_text);
  std::string streamed;
  for (v1::GenerateDelta delta; stream->Read(&delta);) streamed += delta.token_ids();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(streamed, expected.token_ids());

  // Between short ones, and by a client that goes at once.
  grpc::ClientContext context;
  auto many = stub()->GenerateMany(&context);
  for (int i = 0; i < 6; ++i) {
    v1::GenerateManyRequest item;
    *item.mutable_generate() = i % 2 == 0 ? by_text : Prompt("1+1=", 5, 20);
    item.mutable_generate()->set_request_id(absl::StrCat("long text ", i));
    ASSERT_TRUE(many->Write(item));
  }
  many->WritesDone();
  int equal = 0;
  for (v1::GenerateManyResponse answer; many->Read(&answer);) {
    ASSERT_EQ(answer.response().samples_size(), 1) << answer.error().message();
    equal += answer.response().samples(0).token_ids() == expected.token_ids();
  }
  EXPECT_TRUE(many->Finish().ok());
  EXPECT_EQ(equal, 3);
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext gone;
    auto leaving = stub()->GenerateStream(&gone, by_text);
    gone.TryCancel();
    for (v1::GenerateDelta delta; leaving->Read(&delta);) {
    }
    EXPECT_EQ(leaving->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(testing::Bits(Generate(by_text)), testing::Bits(expected));
}

TEST_F(TextTest, TextBecomesIdsAndComesBack) {
  for (const std::string text :
       {"", "12+34*2= 46", "\xF0\x9F\x98\x8E \xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D", "a\n\n  b\tc ",
        "<|im_end|>", "\xEC\x84\x9C\xEC\x9A\xB8 Caf\xC3\xA9"}) {
    v1::TokenizeRequest request;
    request.set_text(text);
    const auto ids = CallNow(stub(), &RolloutStub::Tokenize, request);
    ASSERT_TRUE(ids.ok()) << ids.status();
    v1::DetokenizeRequest back;
    *back.mutable_ids() = client::ToIdField(ReadIds(ids->ids()));
    const auto decoded = CallNow(stub(), &RolloutStub::Detokenize, back);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->text(), text);
    if (text.empty()) continue;
    // Generate sees the same ids.
    v1::GenerateRequest generate = Prompt(text, 1, 0);
    const auto answer = GenerateAll(stub(), {generate})[0];
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->prompt_ids(), ids->ids());
  }
  v1::DetokenizeRequest outside;
  outside.add_ids(512);
  EXPECT_EQ(CallNow(stub(), &RolloutStub::Detokenize, outside).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep
