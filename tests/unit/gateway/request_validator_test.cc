#include "services/gateway/request_validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace lockstep::gateway {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// Rows of lm_head that have no token follow the 12 ids that can be drawn.
ModelLimits Limits() {
  ModelLimits limits;
  limits.vocabulary = 16;
  limits.context_tokens_max = 100;
  limits.kv_tokens_max = 64;
  limits.message_bytes_max = 1 << 20;
  limits.fingerprint.set_mode(v1::MODE_DETERMINISTIC);
  limits.fingerprint.set_vocabulary_sampled(12);
  return limits;
}

v1::GenerateRequest Prompt() {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(3);
  request.mutable_stop()->set_max_new_tokens(8);
  return request;
}

absl::StatusOr<ValidRequest> Validate(const v1::GenerateRequest& request,
                                      const ModelLimits& limits = Limits()) {
  return RequestValidator(nullptr).Generate(request, limits);
}

std::string Refusal(const v1::GenerateRequest& request, const ModelLimits& limits = Limits()) {
  return std::string(Validate(request, limits).status().message());
}

void Ban(int ids, v1::GenerateRequest* request) {
  for (int id = 0; id < ids; ++id) {
    v1::LogitBias* bias = request->mutable_sampling()->add_logit_bias();
    bias->set_id(id);
    bias->set_bias(kBanned);
  }
}

TEST(RequestValidatorTest, ABanLeavesAnIdThatCanBeDrawn) {
  v1::GenerateRequest request = Prompt();
  Ban(11, &request);
  EXPECT_TRUE(Validate(request).ok()) << Refusal(request);
  for (const int ids : {12, 13, 16}) {
    request.mutable_sampling()->clear_logit_bias();
    Ban(ids, &request);
    EXPECT_EQ(Refusal(request), "sampling.logit_bias: bans all 12 ids that can be drawn, [0, 12)")
        << ids;
  }
  // All that is asked for is there already.
  request.mutable_stop()->set_max_new_tokens(0);
  EXPECT_TRUE(Validate(request).ok()) << Refusal(request);
}

TEST(RequestValidatorTest, ABanLeavesAnIdBesideTheStopIdsUntilTheyMayStop) {
  v1::GenerateRequest request = Prompt();
  Ban(11, &request);
  request.mutable_stop()->add_stop_ids(15);
  request.mutable_stop()->set_min_new_tokens(1);
  EXPECT_TRUE(Validate(request).ok()) << Refusal(request);
  request.mutable_stop()->add_stop_ids(11);
  EXPECT_EQ(Refusal(request),
            "sampling.logit_bias: with the stop ids, which stop.min_new_tokens keeps out, it bans "
            "all 12 ids that can be drawn, [0, 12)");
  request.mutable_stop()->set_min_new_tokens(0);
  EXPECT_TRUE(Validate(request).ok()) << Refusal(request);
}

// Receipts are made of the effective parameters' bytes.
TEST(RequestValidatorTest, ZeroHasOneSignInEveryFloatField) {
  const google::protobuf::Descriptor& type = *v1::SamplingParams::descriptor();
  int compared = 0;
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = type.field(i);
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_FLOAT) continue;
    std::vector<std::string> bytes;
    for (const float zero : {0.0f, -0.0f}) {
      v1::GenerateRequest request = Prompt();
      request.set_seed(1);
      v1::SamplingParams* sampling = request.mutable_sampling();
      sampling->GetReflection()->SetFloat(sampling, field, zero);
      const auto valid = Validate(request);
      bytes.push_back(valid.ok() ? valid->effective.SerializeAsString() : "refused");
    }
    EXPECT_EQ(bytes[0], bytes[1]) << field->name();
    compared += bytes[0] != "refused";
  }
  EXPECT_EQ(compared, 4) << "temperature, min_p and two penalties";

  v1::GenerateRequest request = Prompt();
  request.mutable_sampling()->add_logit_bias()->set_bias(-0.0f);
  const auto valid = Validate(request);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_FALSE(std::signbit(valid->effective.sampling().logit_bias(0).bias()));
  ModelLimits limits = Limits();
  limits.generation_config_json = R"({"temperature": -0.0})";
  request = Prompt();
  request.set_use_model_defaults(true);
  EXPECT_FALSE(std::signbit(Validate(request, limits)->effective.sampling().temperature()));
}

TEST(RequestValidatorTest, ZeroHasOneSignInAScoreRequest) {
  v1::ScoreRequest request;
  request.add_ids(1);
  request.add_ids(2);
  request.set_temperature(-0.0f);
  const auto valid = RequestValidator(nullptr).Score(request, Limits());
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_FALSE(std::signbit(valid->effective.sampling().temperature()));
}

TEST(RequestValidatorTest, ModelDefaultsThatAreNoneAreRefusedByFileAndField) {
  struct Case {
    const char* json;
    const char* named;
  };
  const Case cases[] = {
      {R"({"top_k": 1e300})", "top_k is no integer of 64 bits"},
      {R"({"top_k": 9223372036854775808})", "top_k is no integer of 64 bits"},
      {R"({"top_k": 2.5})", "top_k is no integer of 64 bits"},
      {R"({"top_k": -2})", "top_k: -2 is outside [-1, 2^63 - 1]"},
      {R"({"temperature": "hot"})", "temperature is no number"},
      {R"({"temperature": 1e300})", "temperature: inf is outside {0} and [1e-06, 1e+06]"},
      {R"({"temperature": true})", "temperature is no number"},
      {R"({"top_p": []})", "top_p is no number"},
      {R"({"min_p": -1})", "min_p: -1 is outside [0, 1]"},
      {R"({"repetition_penalty": 0})", "repetition_penalty: 0 is outside [0.01, 100]"},
      {R"({"do_sample": "no"})", "do_sample is neither true nor false"},
      {R"([])", "is no JSON object"},
  };
  for (const Case& one : cases) {
    ModelLimits limits = Limits();
    limits.generation_config_json = one.json;
    v1::GenerateRequest request = Prompt();
    EXPECT_TRUE(Validate(request, limits).ok()) << "not asked for: " << one.json;
    request.set_use_model_defaults(true);
    EXPECT_EQ(Validate(request, limits).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Refusal(request, limits),
                AllOf(HasSubstr("generation_config.json: "), HasSubstr(one.named)))
        << one.json;
  }
  // What the request gives itself is not taken from there.
  ModelLimits limits = Limits();
  limits.generation_config_json = R"({"top_k": 1e300, "temperature": null, "top_p": 0.5})";
  v1::GenerateRequest request = Prompt();
  request.set_use_model_defaults(true);
  request.mutable_sampling()->set_top_k(3);
  const auto valid = Validate(request, limits);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->effective.sampling().top_k(), 3);
  EXPECT_EQ(valid->effective.sampling().temperature(), 1);
  EXPECT_EQ(valid->effective.sampling().top_p(), 0.5f);
}

TEST(RequestValidatorTest, ASizeIsMeasuredHoweverLargeItIs) {
  const RequestValidator validator(nullptr);
  for (const int64_t tokens : {int64_t{64}, int64_t{100}, int64_t{1} << 40, kLargest}) {
    v1::GenerateRequest request = Prompt();
    request.mutable_stop()->set_max_new_tokens(tokens);
    const auto measured = validator.Measure(request, Limits());
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_EQ(measured->request.effective.stop().max_new_tokens(), tokens);
    EXPECT_EQ(std::string(measured->fits.message()), Refusal(request));
    EXPECT_FALSE(measured->fits.ok());
    request.mutable_stop()->clear_max_new_tokens();
    request.mutable_stop()->set_min_new_tokens(tokens);
    EXPECT_TRUE(validator.Measure(request, Limits()).ok()) << tokens;
  }
  v1::GenerateRequest request = Prompt();
  request.mutable_stop()->clear_max_new_tokens();
  for (int i = 0; i < 200; ++i) request.add_generated_ids(1);
  EXPECT_TRUE(validator.Measure(request, Limits()).ok());
  request.clear_generated_ids();
  for (int i = 0; i < 200; ++i) request.mutable_prompt_ids()->add_ids(1);
  const auto measured = validator.Measure(request, Limits());
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_EQ(measured->request.effective.stop().max_new_tokens(), 0);
}

TEST(RequestValidatorTest, WhatIsNotOnlyTooLargeIsAnErrorThatNamesTrueLimits) {
  v1::GenerateRequest request = Prompt();
  request.mutable_stop()->set_max_new_tokens(-5);
  EXPECT_EQ(std::string(RequestValidator(nullptr).Measure(request, Limits()).status().message()),
            "stop.max_new_tokens: -5 is outside [0, 99]: the context holds 100 tokens and the "
            "prompt takes 1");
  request.mutable_stop()->set_max_new_tokens(1000);
  request.mutable_stop()->set_min_new_tokens(1001);
  EXPECT_THAT(std::string(RequestValidator(nullptr).Measure(request, Limits()).status().message()),
              HasSubstr("stop.min_new_tokens: 1001 is outside [0, 1000]"));
}

}  // namespace
}  // namespace lockstep::gateway
