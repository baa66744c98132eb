// More work than fits: KV at its edge, streams that nobody reads, answers larger than a client
// takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::ClusterHarness;
using testing::GenerateCalls;
using testing::GenerateQuietly;

constexpr int64_t kDemoKvBytesPerToken = 4 * 2 * 2 * 64 * 4;  // layers, k and v, heads, dims, fp32
constexpr int kLongPromptTokens = 2000;

v1::GenerateRequest LongPrompt(int samples) {
  v1::GenerateRequest request;
  for (int i = 0; i < kLongPromptTokens; ++i) {
    request.mutable_prompt_ids()->add_ids(16 + (i * 7) % 40);
  }
  request.set_n(samples);
  request.set_seed(5);
  request.mutable_stop()->set_max_new_tokens(40);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

TEST(PressureTest, GroupOnALongPromptAtTheEdgeOfKvEndsAndSharesOnePrefill) {
  ClusterHarness cluster({.model = "deploy/demo-model",
                          .workers = 1,
                          .kv_bytes = kLongPromptTokens * 13 / 10 * kDemoKvBytesPerToken});
  ASSERT_TRUE(cluster.Start().ok());
  const double before = cluster.WorkerMetric(0, "lockstep_worker_prefilled_prompt_tokens_total");
  GenerateCalls group(cluster.stub());
  group.Start(LongPrompt(64));
  const auto answer = group.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->samples_size(), 64);
  for (const v1::Sample& sample : answer->samples()) {
    EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_LENGTH) << sample.error().message();
  }
  const double prefilled =
      cluster.WorkerMetric(0, "lockstep_worker_prefilled_prompt_tokens_total") - before;
  // Once, plus what a sample must recompute to have a row for its first token, plus preemptions.
  EXPECT_LT(prefilled, 2.0 * kLongPromptTokens + 64 * 64);

  GenerateCalls shorts(cluster.stub());
  for (int i = 0; i < 500; ++i) {
    v1::GenerateRequest request;
    request.set_prompt_text(absl::StrCat(i, "+34*2="));
    request.mutable_stop()->set_max_new_tokens(24);
    shorts.Start(request);
  }
  for (const auto& short_answer : shorts.Wait()) EXPECT_TRUE(short_answer.ok());

  // A sample alone, with nothing cached, has the same bits.
  v1::GenerateRequest alone = LongPrompt(1);
  alone.set_first_sample_index(17);
  const auto quiet = GenerateQuietly(cluster.stub(), {alone})[0];
  ASSERT_TRUE(quiet.ok()) << quiet.status();
  EXPECT_EQ(Bits(quiet->samples(0)), Bits(answer->samples(17)));

  cluster.StopScheduler();
  ASSERT_TRUE(cluster.StartScheduler().ok());
  EXPECT_TRUE(cluster.WaitForWorkers(1));
  EXPECT_TRUE(ClusterHarness::WaitUntil([&] {
    return cluster.SchedulerMetric("lockstep_scheduler_kv_blocks_reserved") == 0 &&
           cluster.WorkerMetric(0, "lockstep_worker_kv_blocks_used") == 0;
  }));
}

TEST(PressureTest, ForcedPreemptionMovesNoBit) {
  // 40 sequences are admitted by their reservation and grow to twice what fits.
  ClusterHarness cluster({.model = "deploy/demo-model",
                          .workers = 1,
                          .kv_bytes = 4000 * kDemoKvBytesPerToken,
                          .reserve_horizon_tokens = 64});
  ASSERT_TRUE(cluster.Start().ok());
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 40; ++i) {
    v1::GenerateRequest request;
    request.set_prompt_text(absl::StrCat("Tell me a story about ", i, ":"));
    request.set_seed(i);
    request.mutable_stop()->set_max_new_tokens(200);
    request.mutable_stop()->set_ignore_eos(true);
    requests.push_back(request);
  }
  const auto expected = GenerateQuietly(cluster.stub(), requests);
  const auto answers = testing::GenerateAll(cluster.stub(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(expected[i].ok() && answers[i].ok());
    EXPECT_EQ(Bits(*answers[i]), Bits(*expected[i])) << i;
  }
  EXPECT_GE(cluster.WorkerMetric(0, "lockstep_worker_preemptions_total"), 1);
}

TEST(PressureTest, UnreadStreamIsNotReadFromAndDoesNotDisturbOthers) {
  ClusterHarness cluster({.stream_idle_timeout_seconds = 3});
  ASSERT_TRUE(cluster.Start().ok());
  grpc::ClientContext context;
  auto stream = cluster.stub()->GenerateMany(&context);
  std::atomic<int> written = 0;
  std::thread writer([&] {
    for (int i = 0; i < 50000; ++i) {
      v1::GenerateManyRequest item;
      item.mutable_generate()->set_request_id(absl::StrCat("unread-", i));
      for (int id = 0; id < 200; ++id) item.mutable_generate()->mutable_prompt_ids()->add_ids(id);
      item.mutable_generate()->mutable_stop()->set_max_new_tokens(200);
      if (!stream->Write(item)) return;
      ++written;
    }
  });
  // Others are served while the writer is held back.
  for (int i = 0; i < 20; ++i) {
    v1::GenerateRequest request;
    request.mutable_prompt_ids()->add_ids(1);
    request.mutable_stop()->set_max_new_tokens(4);
    EXPECT_TRUE(testing::GenerateAll(cluster.stub(), {request})[0].ok());
  }
  EXPECT_LE(cluster.GatewayMetric("lockstep_gateway_samples_open"), 1024);
  writer.join();
  // The server ended the stream, because its answers were not read.
  EXPECT_LT(written, 50000);
  v1::GenerateManyResponse response;
  while (stream->Read(&response)) {
  }
  // A client that does not read cannot be sent the reason when a message is in flight to it.
  EXPECT_THAT(stream->Finish().error_code(),
              ::testing::AnyOf(grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::CANCELLED));
}

TEST(PressureTest, AnswerLargerThanTheClientTakesNamesTheLimit) {
  ClusterHarness cluster({.workers = 1, .kv_bytes = int64_t{64} << 20});
  ASSERT_TRUE(cluster.Start().ok());
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(1);
  request.set_n(64);
  request.mutable_stop()->set_max_new_tokens(600);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_logprobs()->set_top_count(64);
  // gRPC's default limit for a client that sets none.
  const auto channel =
      grpc::CreateChannel(cluster.gateway_address(), grpc::InsecureChannelCredentials());
  const auto stub = v1::RolloutService::NewStub(channel);
  const auto answer = testing::GenerateAll(stub.get(), {request})[0];
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted) << answer.status();
  EXPECT_THAT(std::string(answer.status().message()), ::testing::HasSubstr("4194304"));
}

// Refused before anything runs where it is certain, else in place of the answer; the streams that
// need no such message serve it.
TEST(PressureTest, AnswersBeyondTheLimitOfAMessageAreRefusedAsSoonAsTheyAreKnown) {
  ClusterHarness cluster(
      {.workers = 1, .kv_bytes = int64_t{64} << 20, .message_bytes_max = int64_t{1} << 20});
  ASSERT_TRUE(cluster.Start().ok());
  const auto generated = [&] {
    return cluster.GatewayMetric("lockstep_gateway_generated_tokens_total");
  };
  v1::GenerateRequest group;
  group.mutable_prompt_ids()->add_ids(1);
  group.set_n(8);
  group.mutable_stop()->set_max_new_tokens(400);
  group.mutable_stop()->set_ignore_eos(true);
  group.mutable_logprobs()->set_top_count(64);
  const auto certain = testing::GenerateAll(cluster.stub(), {group})[0];
  EXPECT_EQ(certain.status().code(), absl::StatusCode::kInvalidArgument) << certain.status();
  v1::ScoreRequest score;
  for (int i = 0; i < 3000; ++i) score.add_ids(i);
  score.set_top_count(64);
  const auto scored = testing::CallNow(cluster.stub(), &testing::RolloutStub::Score, score);
  EXPECT_EQ(scored.status().code(), absl::StatusCode::kInvalidArgument) << scored.status();
  EXPECT_EQ(generated(), 0);

  // It might have stopped at this id.
  group.mutable_stop()->add_stop_ids(3);
  const auto late = testing::GenerateAll(cluster.stub(), {group})[0];
  EXPECT_EQ(late.status().code(), absl::StatusCode::kResourceExhausted) << late.status();
  EXPECT_THAT(std::string(late.status().message()), ::testing::HasSubstr("1048576"));
  EXPECT_GT(generated(), 8 * 100);

  // One sample fits; one of 2500 tokens does not.
  grpc::ClientContext context;
  auto stream = cluster.stub()->GenerateMany(&context);
  v1::GenerateManyRequest item;
  *item.mutable_generate() = group;
  item.mutable_generate()->set_request_id("fits");
  ASSERT_TRUE(stream->Write(item));
  item.mutable_generate()->set_request_id("late");
  item.mutable_generate()->set_n(1);
  item.mutable_generate()->mutable_stop()->set_max_new_tokens(2500);
  item.mutable_generate()->mutable_stop()->clear_stop_ids();
  item.mutable_generate()->mutable_stop()->add_stop_ids(0);
  ASSERT_TRUE(stream->Write(item));
  item.mutable_generate()->set_request_id("certain");
  item.mutable_generate()->mutable_stop()->clear_stop_ids();
  ASSERT_TRUE(stream->Write(item));
  stream->WritesDone();
  std::map<std::string, absl::StatusCode> ends;
  v1::GenerateManyResponse response;
  while (stream->Read(&response)) {
    ends[response.request_id()] = rpc::FromErrorDetail(response.error()).code();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(ends, ::testing::UnorderedElementsAre(
                        ::testing::Pair("fits", absl::StatusCode::kOk),
                        ::testing::Pair("late", absl::StatusCode::kResourceExhausted),
                        ::testing::Pair("certain", absl::StatusCode::kInvalidArgument)));

  grpc::ClientContext deltas_context;
  auto deltas = cluster.stub()->GenerateStream(&deltas_context, item.generate());
  v1::GenerateDelta delta;
  size_t tokens = 0;
  while (deltas->Read(&delta)) tokens += delta.token_ids().size() / 4;
  EXPECT_TRUE(deltas->Finish().ok());
  EXPECT_EQ(tokens, 2500u);
}

// Serialising it takes as long as many short calls, which would all wait for it.
TEST(PressureTest, LongAnswersAreBuiltAsideAndShortOnesAreNot) {
  constexpr char kLongWork[] = "lockstep_gateway_long_work_total";
  ClusterHarness cluster({.workers = 1, .kv_bytes = int64_t{64} << 20});
  ASSERT_TRUE(cluster.Start().ok());
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(1);
  request.mutable_stop()->set_max_new_tokens(300);
  request.mutable_stop()->set_ignore_eos(true);
  ASSERT_TRUE(testing::GenerateAll(cluster.stub(), {request})[0].ok());
  EXPECT_EQ(cluster.GatewayMetric(kLongWork), 0);
  request.mutable_logprobs()->set_top_count(64);
  ASSERT_TRUE(testing::GenerateAll(cluster.stub(), {request})[0].ok());
  EXPECT_EQ(cluster.GatewayMetric(kLongWork), 1);
}

// The prompt is in what each sample sends to the router: together more than a message may have.
TEST(PressureTest, GroupLargerThanAMessageReachesTheRouterInParts) {
  ClusterHarness cluster({.workers = 1, .kv_bytes = int64_t{64} << 20});
  ASSERT_TRUE(cluster.Start().ok());
  v1::GenerateRequest request;
  for (int i = 0; i < 24'000; ++i) request.mutable_prompt_ids()->add_ids(20'000);
  request.set_n(1024);
  request.mutable_stop()->set_max_new_tokens(1);
  ASSERT_GT(request.ByteSizeLong() * 1024, size_t{64} << 20);
  GenerateCalls calls(cluster.stub());
  calls.Start(request);
  const auto answer = calls.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->samples_size(), 1024);
  for (const v1::Sample& sample : answer->samples()) {
    EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_LENGTH) << sample.error().message();
    EXPECT_EQ(sample.usage().resumptions(), 0) << "the router broke the stream";
  }
}

}  // namespace
}  // namespace lockstep
