// Every bad value gets a status that names field, value and limit, and moves no bit of a neighbour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateCalls;

struct BadCase {
  std::string name;
  std::function<void(v1::GenerateRequest*)> spoil;
  std::string message;  // Must be in the error.
};

std::vector<BadCase> IdCases() {
  std::vector<BadCase> cases;
  const std::vector<int64_t> bad = {-1, 512, 513, (int64_t{1} << 31) - 1, (int64_t{1} << 32) + 5};
  for (const int64_t id : bad) {
    const std::string value = absl::StrCat(id, " is outside [0, 512)");
    cases.push_back({absl::StrCat("prompt ", id),
                     [id](auto* r) { r->mutable_prompt_ids()->add_ids(id); },
                     absl::StrCat("prompt_ids[2]: ", value)});
    cases.push_back({absl::StrCat("stop ", id),
                     [id](auto* r) { r->mutable_stop()->add_stop_ids(id); },
                     absl::StrCat("stop.stop_ids[0]: ", value)});
    cases.push_back({absl::StrCat("bias ", id),
                     [id](auto* r) { r->mutable_sampling()->add_logit_bias()->set_id(id); },
                     absl::StrCat("sampling.logit_bias[0].id: ", value)});
    cases.push_back({absl::StrCat("chosen ", id),
                     [id](auto* r) { r->mutable_logprobs()->add_chosen_ids(id); },
                     absl::StrCat("logprobs.chosen_ids[0]: ", value)});
    cases.push_back({absl::StrCat("generated ", id), [id](auto* r) { r->add_generated_ids(id); },
                     absl::StrCat("generated_ids[0]: ", value)});
  }
  return cases;
}

std::vector<BadCase> ParameterCases() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<BadCase> cases;
  for (const float t : {1e-45f, 1e-12f, nan, inf, -1.f, -inf}) {
    cases.push_back({absl::StrCat("temperature ", t),
                     [t](auto* r) { r->mutable_sampling()->set_temperature(t); },
                     "sampling.temperature: "});
  }
  for (const float p : {0.f, -0.1f, 1.1f, nan, inf}) {
    cases.push_back({absl::StrCat("top_p ", p),
                     [p](auto* r) { r->mutable_sampling()->set_top_p(p); }, "sampling.top_p: "});
  }
  cases.push_back({"top_p next to 1",
                   [](auto* r) { r->mutable_sampling()->set_top_p(std::nextafter(1.f, 2.f)); },
                   "sampling.top_p: 1.0000001 is outside (0, 1]"});
  cases.push_back(
      {"top_k smallest",
       [](auto* r) { r->mutable_sampling()->set_top_k(std::numeric_limits<int64_t>::min()); },
       "sampling.top_k: -9223372036854775808 is outside [-1, 2^63 - 1]"});
  cases.push_back(
      {"top_k", [](auto* r) { r->mutable_sampling()->set_top_k(-2); }, "sampling.top_k: -2"});
  cases.push_back(
      {"min_p", [](auto* r) { r->mutable_sampling()->set_min_p(1.5); }, "sampling.min_p: 1.5"});
  cases.push_back({"penalty", [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0); },
                   "sampling.repetition_penalty: 0"});
  cases.push_back({"tiny penalty",
                   [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0.009f); },
                   "sampling.repetition_penalty: 0.009 is outside [0.01, 100]"});
  cases.push_back(
      {"mode", [](auto* r) { r->set_require_mode(static_cast<v1::Mode>(77)); },
       "require_mode: 77 is none of MODE_UNSPECIFIED, MODE_DETERMINISTIC, MODE_NORMAL"});
  cases.push_back({"sample index",
                   [](auto* r) { r->set_first_sample_index(std::numeric_limits<int64_t>::max()); },
                   "first_sample_index: 9223372036854775807 is outside [0, 2147483647]"});
  cases.push_back({"n", [](auto* r) { r->set_n(0); }, "n: 0 is outside [1, 1024]"});
  cases.push_back({"n large", [](auto* r) { r->set_n(1025); }, "n: 1025"});
  cases.push_back({"max_new", [](auto* r) { r->mutable_stop()->set_max_new_tokens(8191); },
                   "stop.max_new_tokens: 8191 is outside [0, 8190]"});
  cases.push_back({"min_new",
                   [](auto* r) {
                     r->mutable_stop()->set_max_new_tokens(4);
                     r->mutable_stop()->set_min_new_tokens(5);
                   },
                   "stop.min_new_tokens: 5 is outside [0, 4]"});
  cases.push_back({"empty stop", [](auto* r) { r->mutable_stop()->add_stop_strings(""); },
                   "stop.stop_strings[0]: 0 bytes"});
  cases.push_back({"broken stop", [](auto* r) { r->mutable_stop()->add_stop_strings("\xff"); },
                   "stop.stop_strings[0]: not valid UTF-8"});
  const auto ban = [](v1::GenerateRequest* r, int ids) {
    for (int id = 0; id < ids; ++id) {
      v1::LogitBias* bias = r->mutable_sampling()->add_logit_bias();
      bias->set_id(id);
      bias->set_bias(-std::numeric_limits<float>::infinity());
    }
  };
  cases.push_back(
      {"all banned", [ban](auto* r) { ban(r, 512); }, "sampling.logit_bias: bans all 500 ids"});
  // Ids 500 to 511 of the demo model have no token.
  cases.push_back({"all that can be drawn banned",
                   [ban](auto* r) {
                     ban(r, 500);
                     r->set_n(2);
                   },
                   "sampling.logit_bias: bans all 500 ids that can be drawn, [0, 500)"});
  cases.push_back({"all banned at first",
                   [ban](auto* r) {
                     ban(r, 499);
                     r->mutable_stop()->add_stop_ids(499);
                     r->mutable_stop()->set_min_new_tokens(1);
                   },
                   "sampling.logit_bias: with the stop ids"});
  cases.push_back({"top_count", [](auto* r) { r->mutable_logprobs()->set_top_count(65); },
                   "logprobs.top_count: 65"});
  cases.push_back({"prompt_from", [](auto* r) { r->mutable_logprobs()->set_prompt_from(3); },
                   "logprobs.prompt_from: 3 is outside [1, 2]"});
  cases.push_back({"request id", [](auto* r) { r->set_request_id("a\nb"); }, "request_id: "});
  cases.push_back({"routing key", [](auto* r) { r->set_routing_key("\xc3\xa9"); },
                   "routing_key: byte 0xc3 is not printable ASCII"});
  cases.push_back({"namespace", [](auto* r) { r->set_cache_namespace(std::string(257, 'x')); },
                   "cache_namespace: 257 bytes, at most 256"});
  cases.push_back({"exact seed",
                   [](auto* r) {
                     r->set_exact_seed(1);
                     r->set_n(2);
                   },
                   "exact_seed: needs n = 1, n is 2"});
  cases.push_back(
      {"empty prompt", [](auto* r) { r->mutable_prompt_ids()->clear_ids(); }, "prompt: empty"});
  return cases;
}

TEST(BadInputTest, EachBadValueIsNamedAndTheNeighbourKeepsItsBits) {
  ClusterHarness cluster({.model = "deploy/demo-model", .kv_bytes = int64_t{64} << 20});
  ASSERT_TRUE(cluster.Start().ok());
  v1::GenerateRequest neighbour;
  neighbour.set_prompt_text("12+34*2=");
  neighbour.set_seed(3);
  const auto quiet = GenerateAll(cluster.stub(), {neighbour})[0];
  ASSERT_TRUE(quiet.ok()) << quiet.status();

  std::vector<BadCase> cases = IdCases();
  for (BadCase& bad : ParameterCases()) cases.push_back(std::move(bad));
  GenerateCalls calls(cluster.stub());
  for (const BadCase& bad : cases) {
    v1::GenerateRequest request;
    request.mutable_prompt_ids()->add_ids(16);
    request.mutable_prompt_ids()->add_ids(17);
    bad.spoil(&request);
    calls.Start(request);
    calls.Start(neighbour);
  }
  const auto answers = calls.Wait();
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& refused = answers[2 * i];
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << cases[i].name;
    EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr(cases[i].message))
        << cases[i].name;
    ASSERT_TRUE(answers[2 * i + 1].ok()) << answers[2 * i + 1].status();
    EXPECT_EQ(Bits(*answers[2 * i + 1]), Bits(*quiet)) << cases[i].name;
  }
}

TEST(BadInputTest, ScoreAndDetokenizeNameTheIdToo) {
  ClusterHarness cluster({.model = "deploy/demo-model", .workers = 1});
  ASSERT_TRUE(cluster.Start().ok());
  for (const int64_t id : {int64_t{-1}, int64_t{512}, (int64_t{1} << 32) + 5}) {
    v1::ScoreRequest ids;
    for (const int64_t one : {int64_t{16}, int64_t{17}, id}) ids.add_ids(one);
    v1::ScoreRequest chosen;
    for (const int64_t one : {16, 17}) chosen.add_ids(one);
    chosen.add_chosen_ids(id);
    v1::DetokenizeRequest text;
    text.add_ids(id);
    const std::string value = absl::StrCat(id, " is outside [0, 512)");
    const auto expect_refused = [&](const absl::Status& status, const std::string& field) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
      EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(field + ": " + value));
    };
    const auto call = [&](auto method, const auto& request) {
      return testing::CallNow(cluster.stub(), method, request).status();
    };
    expect_refused(call(&testing::RolloutStub::Score, ids), "ids[2]");
    expect_refused(call(&testing::RolloutStub::Score, chosen), "chosen_ids[0]");
    expect_refused(call(&testing::RolloutStub::Detokenize, text), "ids[0]");
  }
}

TEST(BadInputTest, WhatConcernsTheClusterIsCheckedLikeARequest) {
  ClusterHarness cluster({.workers = 1});
  ASSERT_TRUE(cluster.Start().ok());
  const auto error = [&](auto method, const auto& request) {
    const absl::Status status = testing::CallNow(cluster.stub(), method, request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  v1::FlushCacheRequest flush;
  flush.set_cache_namespace(std::string(257, 'x'));
  EXPECT_EQ(error(&testing::RolloutStub::FlushCache, flush),
            "cache_namespace: 257 bytes, at most 256");
  flush.set_cache_namespace("\xc3\xa9");
  EXPECT_EQ(error(&testing::RolloutStub::FlushCache, flush),
            "cache_namespace: byte 0xc3 is not printable ASCII");
  v1::PauseRequest pause;
  pause.set_mode(static_cast<v1::PauseMode>(77));
  EXPECT_EQ(error(&testing::RolloutStub::Pause, pause), "mode: 77 is outside [0, 3]");
}

TEST(BadInputTest, MoreIdsToScoreThanTheContextHoldsAreRefusedByTheirOwnName) {
  ClusterHarness cluster({.workers = 1});
  ASSERT_TRUE(cluster.Start().ok());
  const auto info = testing::CallNow(cluster.stub(), &testing::RolloutStub::GetServerInfo,
                                     v1::GetServerInfoRequest());
  ASSERT_TRUE(info.ok()) << info.status();
  v1::ScoreRequest request;
  for (int64_t i = 0; i <= info->context_tokens_max(); ++i) request.add_ids(1);
  const auto answer = testing::CallNow(cluster.stub(), &testing::RolloutStub::Score, request);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(answer.status().message(),
            absl::StrCat("ids: ", info->context_tokens_max() + 1, " tokens, the context holds ",
                         info->context_tokens_max()));
}

TEST(BadInputTest, ExtremeButLegalTemperaturesGiveDefinedResults) {
  ClusterHarness cluster({.model = "deploy/demo-model"});
  ASSERT_TRUE(cluster.Start().ok());
  std::vector<v1::GenerateRequest> requests;
  for (const float t : {0.f, 1e-6f, 1e-4f, 1.f, 100.f, 1e6f}) {
    v1::GenerateRequest request;
    request.set_prompt_text("12+34*2=");
    request.set_seed(3);
    request.mutable_sampling()->set_temperature(t);
    request.mutable_stop()->set_max_new_tokens(32);
    requests.push_back(request);
  }
  const auto answers = GenerateAll(cluster.stub(), requests);
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    const std::string& raw = answer->samples(0).logprobs().raw();
    for (size_t i = 0; i < raw.size(); i += 4) {
      float value;
      std::memcpy(&value, raw.data() + i, 4);
      EXPECT_TRUE(std::isfinite(value));
    }
  }
  // So cold that noise cannot matter: the greedy ids.
  EXPECT_EQ(answers[1]->samples(0).token_ids(), answers[0]->samples(0).token_ids());
}

}  // namespace
}  // namespace lockstep
