// What a trainer may count on at the gateway: retries by id, requirements, refusals, streams of
// many prompts, questions about the cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "grpcpp/generic/generic_stub.h"
#include "services/client/arrays.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::CallNow;
using testing::ClusterHarness;
using testing::GenerateAll;
using testing::GenerateCalls;
using ::testing::HasSubstr;
using testing::RolloutStub;

v1::GenerateRequest Request(const std::string& id, int64_t tokens) {
  v1::GenerateRequest request;
  request.set_request_id(id);
  request.set_prompt_text("Tell me a story:");
  request.set_seed(3);
  request.mutable_stop()->set_max_new_tokens(tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class ProtocolTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // The demo model with defaults of its own, which use_model_defaults brings into effect.
    model_ = std::make_unique<testing::TemporaryDirectory>();
    std::filesystem::copy("deploy/demo-model", model_->path(),
                          std::filesystem::copy_options::recursive);
    testing::WriteBytes(model_->File("generation_config.json"),
                        R"({"do_sample": true, "eos_token_id": [499, 497], "temperature": 0.6,
                            "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1})");
    cluster_ = std::make_unique<ClusterHarness>(ClusterHarness::Options{.model = model_->path()});
    const absl::Status status = cluster_->Start();
    ASSERT_TRUE(status.ok()) << status;
  }
  static void TearDownTestSuite() {
    cluster_.reset();
    model_.reset();
  }
  static RolloutStub* stub() { return cluster_->stub(); }
  static absl::StatusOr<v1::GenerateResponse> Generate(const v1::GenerateRequest& request) {
    return GenerateAll(stub(), {request})[0];
  }

  // Writes all items, half-closes, reads every answer; parts of one answer become one again.
  static std::map<std::string, v1::GenerateManyResponse> Many(
      const std::vector<v1::GenerateRequest>& items, const v1::GenerateManyOptions& options,
      grpc::Status* status, int* parts = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    auto stream = stub()->GenerateMany(&context);
    v1::GenerateManyRequest first;
    *first.mutable_options() = options;
    bool open = stream->Write(first);
    for (const v1::GenerateRequest& item : items) {
      v1::GenerateManyRequest message;
      *message.mutable_generate() = item;
      open = open && stream->Write(message);
    }
    stream->WritesDone();
    std::map<std::string, v1::GenerateManyResponse> answers;
    v1::GenerateManyResponse response;
    while (stream->Read(&response)) {
      answers[response.request_id()].MergeFrom(response);
      if (parts != nullptr) ++*parts;
    }
    *status = stream->Finish();
    return answers;
  }
  static int CountWhole(const v1::GenerateResponse& response) {
    return static_cast<int>(std::count_if(
        response.samples().begin(), response.samples().end(), [](const v1::Sample& sample) {
          return sample.finish_reason() == v1::FINISH_REASON_LENGTH;
        }));
  }

  // A group of six whose stop id comes early in sample 0 and in another one, and never in a third.
  static v1::GenerateRequest UnevenGroup(const std::string& id) {
    constexpr size_t kEarly = 60, kLimit = 600;
    v1::GenerateRequest group = Request("", kLimit);
    group.set_n(6);
    const auto whole = Generate(group);
    EXPECT_TRUE(whole.ok()) << whole.status();
    group.set_request_id(id);
    for (uint32_t stop = 0; whole.ok() && stop < 512; ++stop) {
      std::vector<size_t> first;
      for (const v1::Sample& sample : whole->samples()) {
        const auto ids = client::ReadIds(sample.token_ids());
        first.push_back(std::find(ids.begin(), ids.end(), stop) - ids.begin());
      }
      const auto early =
          std::count_if(first.begin(), first.end(), [](size_t at) { return at < kEarly; });
      if (first[0] >= kEarly || early < 2 ||
          *std::max_element(first.begin(), first.end()) < kLimit) {
        continue;
      }
      group.mutable_stop()->add_stop_ids(stop);
      return group;
    }
    ADD_FAILURE() << "no id is as rare as it must be";
    return group;
  }

  static std::unique_ptr<testing::TemporaryDirectory> model_;
  static std::unique_ptr<ClusterHarness> cluster_;
};
std::unique_ptr<testing::TemporaryDirectory> ProtocolTest::model_;
std::unique_ptr<ClusterHarness> ProtocolTest::cluster_;

TEST_F(ProtocolTest, EqualBodyUnderAnIdAttachesAndAnotherBodyIsRefused) {
  constexpr char kAttached[] = "lockstep_gateway_attached_total";
  const double attached = cluster_->GatewayMetric(kAttached);
  v1::GenerateRequest request = Request("retried", 200);
  GenerateCalls calls(stub());
  calls.Start(request);
  calls.Start(request);  // While it runs.
  const auto answers = calls.Wait();
  const auto late = Generate(request);  // When it has ended.
  ASSERT_TRUE(answers[0].ok() && answers[1].ok() && late.ok()) << late.status();
  // Not computed again: what it cost is the same too.
  EXPECT_EQ(answers[1]->SerializeAsString(), answers[0]->SerializeAsString());
  EXPECT_EQ(late->SerializeAsString(), answers[0]->SerializeAsString());
  EXPECT_EQ(cluster_->GatewayMetric(kAttached), attached + 2);

  request.set_seed(4);
  const auto refused = Generate(request);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Message(refused.status()), HasSubstr("retried"));
}

TEST_F(ProtocolTest, ScoreNeverAttachesToAGenerateWhoseBytesAreTheSame) {
  v1::GenerateRequest generate;
  generate.set_request_id("ambiguous");
  for (const int64_t id : {16, 17}) generate.mutable_prompt_ids()->add_ids(id);
  generate.mutable_stop()->set_max_new_tokens(1);
  v1::ScoreRequest score;
  // Tag and length of the prompt's ids are read as ids, the stop options as an unknown field.
  ASSERT_TRUE(score.ParseFromString(generate.SerializeAsString()));
  ASSERT_EQ(score.ids_size(), 4);
  ASSERT_TRUE(CallNow(stub(), &RolloutStub::Score, score).ok());
  EXPECT_EQ(Generate(generate).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ProtocolTest, StreamAttachesToARunningAnswerFromItsBeginning) {
  const v1::GenerateRequest request = Request("watched", 300);
  GenerateCalls calls(stub());
  calls.Start(request);
  grpc::ClientContext context;
  auto stream = stub()->GenerateStream(&context, request);
  std::string ids, text;
  v1::GenerateDelta delta;
  while (stream->Read(&delta)) {
    ids += delta.token_ids();
    text += delta.text();
  }
  ASSERT_TRUE(stream->Finish().ok());
  const auto whole = calls.Wait()[0];
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(ids, whole->samples(0).token_ids());
  EXPECT_EQ(text, whole->samples(0).text());
}

TEST_F(ProtocolTest, RequestWithoutSeedDrawsFromItsIdAndSaysSo) {
  v1::GenerateRequest request = Request("named", 20);
  request.clear_seed();
  const auto named = Generate(request);
  ASSERT_TRUE(named.ok()) << named.status();
  v1::GenerateRequest seeded = Request("", 20);
  seeded.set_seed(named->effective().seed());
  const auto again = Generate(seeded);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Bits(*again), Bits(*named));
  request.set_request_id("");
  const auto minted = Generate(request);
  const auto other = Generate(request);
  ASSERT_TRUE(minted.ok() && other.ok());
  EXPECT_NE(minted->request_id(), other->request_id());
  EXPECT_NE(minted->effective().seed(), other->effective().seed());
}

TEST_F(ProtocolTest, RequiredWeightVersionAndModeAreExactOrNamed) {
  v1::GenerateRequest request = Request("", 2);
  request.set_require_weight_version(1);
  request.set_require_mode(v1::MODE_DETERMINISTIC);
  const auto served = Generate(request);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->mode(), v1::MODE_DETERMINISTIC);
  EXPECT_EQ(served->samples(0).weight_versions(0).version(), 1);

  request.set_require_weight_version(7);
  const absl::Status version = Generate(request).status();
  EXPECT_EQ(version.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(version), HasSubstr("require_weight_version: 7"));
  EXPECT_THAT(Message(version), HasSubstr("serves 1"));
  request.clear_require_weight_version();
  request.set_require_mode(v1::MODE_NORMAL);
  const absl::Status mode = Generate(request).status();
  EXPECT_EQ(mode.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(mode), HasSubstr("MODE_NORMAL"));

  v1::ScoreRequest score;
  score.add_ids(16);
  score.add_ids(17);
  score.set_require_weight_version(7);
  EXPECT_EQ(CallNow(stub(), &RolloutStub::Score, score).status().code(),
            absl::StatusCode::kFailedPrecondition);
  score.set_require_weight_version(1);
  EXPECT_TRUE(CallNow(stub(), &RolloutStub::Score, score).ok());
}

TEST_F(ProtocolTest, ModelDefaultsApplyOnlyOnRequestAndOnlyToWhatIsUnset) {
  v1::GenerateRequest request = Request("", 4);
  const auto plain = Generate(request);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->effective().sampling().temperature(), 1);
  EXPECT_EQ(plain->effective().sampling().top_k(), 0);
  request.set_use_model_defaults(true);
  request.mutable_sampling()->set_top_k(5);
  const auto defaulted = Generate(request);
  ASSERT_TRUE(defaulted.ok()) << defaulted.status();
  const v1::SamplingParams& sampling = defaulted->effective().sampling();
  EXPECT_EQ(sampling.temperature(), 0.6f);
  EXPECT_EQ(sampling.top_k(), 5);
  EXPECT_EQ(sampling.top_p(), 0.95f);
  EXPECT_EQ(sampling.repetition_penalty(), 1.1f);
  // The echo is what was applied.
  v1::GenerateRequest explicitly = Request("", 4);
  *explicitly.mutable_sampling() = sampling;
  const auto same = Generate(explicitly);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(Bits(*same), Bits(*defaulted));
}

TEST_F(ProtocolTest, GroupEndsAfterItsFirstFinishedSamples) {
  v1::GenerateManyOptions options;
  options.set_samples_per_group(2);
  grpc::Status status;
  const auto answers = Many({UnevenGroup("first-finished")}, options, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::GenerateResponse& answer = answers.at("first-finished").response();
  ASSERT_EQ(answer.samples_size(), 6);
  int finished = 0, partial = 0;
  for (const v1::Sample& sample : answer.samples()) {
    EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
    finished += sample.finish_reason() == v1::FINISH_REASON_STOP;
    partial += sample.finish_reason() == v1::FINISH_REASON_PARTIAL;
  }
  EXPECT_GE(finished, 2);
  EXPECT_GE(partial, 1);
  EXPECT_EQ(finished + partial, 6);
}

TEST_F(ProtocolTest, GroupEndsAfterItsLowestSamplesAndItsPartialsGoOnToTheSameEnd) {
  v1::GenerateManyOptions options;
  options.set_samples_per_group(1);
  options.set_select(v1::SELECT_ORDER_LOWEST_INDEX);
  grpc::Status status;
  const v1::GenerateRequest group = UnevenGroup("lowest-index");
  const auto answers = Many({group}, options, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::GenerateResponse& answer = answers.at("lowest-index").response();
  ASSERT_EQ(answer.samples_size(), 6);
  EXPECT_EQ(answer.samples(0).finish_reason(), v1::FINISH_REASON_STOP);
  int partial = 0;
  for (const v1::Sample& sample : answer.samples()) {
    if (sample.finish_reason() != v1::FINISH_REASON_PARTIAL) continue;
    ++partial;
    v1::GenerateRequest rest = group;
    rest.clear_request_id();
    rest.set_n(1);
    rest.set_exact_seed(sample.sub_seed());
    rest.set_first_sample_index(sample.index());
    const auto whole = Generate(rest);
    *rest.mutable_generated_ids() = client::ToIdField(client::ReadIds(sample.token_ids()));
    const auto resumed = Generate(rest);
    ASSERT_TRUE(resumed.ok() && whole.ok()) << resumed.status();
    EXPECT_EQ(Bits(*resumed), Bits(*whole)) << sample.index();
  }
  EXPECT_GE(partial, 1);
}

TEST_F(ProtocolTest, StreamEndsAfterItsGroupsAndGivesTheRestAsPartials) {
  std::vector<v1::GenerateRequest> items;
  for (int i = 0; i < 3; ++i) items.push_back(Request(absl::StrCat("long-", i), 3000));
  for (int i = 0; i < 2; ++i) items.push_back(Request(absl::StrCat("short-", i), 10));
  v1::GenerateManyOptions options;
  options.set_groups_total(2);
  grpc::Status status;
  const auto answers = Many(items, options, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(answers.size(), 5u);
  for (const auto& [id, answer] : answers) {
    ASSERT_TRUE(answer.has_response()) << id << ": " << answer.error().message();
    EXPECT_EQ(answer.response().samples(0).finish_reason(),
              id.starts_with("long") ? v1::FINISH_REASON_PARTIAL : v1::FINISH_REASON_LENGTH)
        << id;
  }
}

TEST_F(ProtocolTest, LowestIndexKeepsTheGroupsThatWereSentFirst) {
  std::vector<v1::GenerateRequest> items = {Request("slow", 300), Request("other", 3000)};
  for (int i = 0; i < 3; ++i) items.push_back(Request(absl::StrCat("quick-", i), 5));
  v1::GenerateManyOptions options;
  options.set_groups_total(1);
  options.set_select(v1::SELECT_ORDER_LOWEST_INDEX);
  grpc::Status status;
  const auto answers = Many(items, options, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(answers.size(), 5u);
  EXPECT_EQ(answers.at("slow").response().samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answers.at("other").response().samples(0).finish_reason(), v1::FINISH_REASON_PARTIAL);
}

TEST_F(ProtocolTest, SlotsBoundThePromptsInWorkAndHalfCloseFinishesTheRest) {
  grpc::Status status;
  EXPECT_TRUE(Many({}, {}, &status).empty());
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<v1::GenerateRequest> items;
  for (int i = 0; i < 30; ++i) items.push_back(Request(absl::StrCat("slot-", i), 20));
  v1::GenerateManyOptions options;
  options.set_slots_max(1);
  const auto answers = Many(items, options, &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(answers.size(), 30u);
  for (const auto& [id, answer] : answers) EXPECT_EQ(CountWhole(answer.response()), 1) << id;
}

TEST_F(ProtocolTest, OptionsOutOfRangeEndTheStreamByName) {
  const auto refusal = [&](auto set) {
    v1::GenerateManyOptions options;
    set(&options);
    grpc::Status status;
    Many({}, options, &status);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refusal([](auto* o) { o->set_slots_max(70000); }), HasSubstr("slots_max: 70000"));
  EXPECT_THAT(refusal([](auto* o) { o->set_samples_per_group(-1); }),
              HasSubstr("options.samples_per_group: -1 is less than 0"));
  EXPECT_THAT(refusal([](auto* o) { o->set_groups_total(-5); }),
              HasSubstr("options.groups_total: -5 is less than 0"));
  EXPECT_THAT(refusal([](auto* o) { o->set_select(static_cast<v1::SelectOrder>(9)); }),
              HasSubstr("options.select: 9 is outside [0, 2]"));
}

TEST_F(ProtocolTest, AnItemHasItsOwnTimeAndAnIdIsOnceInWorkOnItsStream) {
  grpc::ClientContext context;
  auto stream = stub()->GenerateMany(&context);
  v1::GenerateManyRequest item;
  *item.mutable_generate() = Request("in-time", 4000);
  item.set_timeout_seconds(0.2);
  ASSERT_TRUE(stream->Write(item));
  ASSERT_TRUE(stream->Write(item));
  item.mutable_generate()->set_request_id("");
  ASSERT_TRUE(stream->Write(item));
  for (const double seconds : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    *item.mutable_generate() = Request(absl::StrCat("time ", seconds), 1);
    item.set_timeout_seconds(seconds);
    ASSERT_TRUE(stream->Write(item));
  }
  stream->WritesDone();
  std::set<std::string> errors;
  int aborted = 0;
  v1::GenerateManyResponse response;
  while (stream->Read(&response)) {
    if (response.has_error()) errors.insert(response.error().message());
    if (!response.has_response()) continue;
    aborted += response.response().samples(0).finish_reason() == v1::FINISH_REASON_ABORT;
    EXPECT_LT(response.response().samples(0).token_ids().size(), 4 * 4000u);
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(errors, ::testing::ElementsAre(
                          "generate.request_id: \"in-time\" is in work on this stream already",
                          "generate.request_id: required on a stream, but empty",
                          HasSubstr("timeout_seconds: -1"), HasSubstr("timeout_seconds: nan")));
  EXPECT_EQ(aborted, 1);
}

TEST_F(ProtocolTest, LargeAnswersOfAStreamComeInPartsThatMakeTheWhole) {
  v1::GenerateRequest group = Request("", 300);
  group.set_n(10);
  group.mutable_logprobs()->set_top_count(64);
  const auto whole = Generate(group);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_GT(whole->ByteSizeLong(), size_t{1} << 20);
  group.set_request_id("in-parts");
  grpc::Status status;
  int parts = 0;
  const auto answers = Many({group}, {}, &status, &parts);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_GE(parts, 2);
  EXPECT_EQ(Bits(answers.at("in-parts").response()), Bits(*whole));
}

TEST_F(ProtocolTest, DeadlineBringsWhatThereIsBeforeItPasses) {
  const v1::GenerateRequest request = Request("", 4000);
  GenerateCalls calls(stub());
  calls.Start(request, absl::Seconds(1));
  const auto answer = calls.Wait()[0];
  ASSERT_TRUE(answer.ok()) << answer.status();
  const v1::Sample& sample = answer->samples(0);
  EXPECT_EQ(sample.finish_reason(), v1::FINISH_REASON_ABORT);
  EXPECT_GT(sample.token_ids().size(), 0u);
  EXPECT_EQ(sample.logprobs().raw().size(), sample.token_ids().size());
  EXPECT_LE(answer->effective().deadline_seconds(), 1);
  // The innermost hop ended it: what it costs is known.
  EXPECT_NE(sample.usage().worker_id(), "");
  EXPECT_GT(sample.usage().decode_seconds(), 0);
}

TEST_F(ProtocolTest, ReflectionAndHealthAreServed) {
  const auto channel = rpc::MakeChannel(cluster_->gateway_address());
  for (const char* name : {"", "live", "started", "ready"}) {
    const auto healthy = rpc::CheckHealth(channel, name, absl::Seconds(10));
    EXPECT_TRUE(healthy.ok() && *healthy) << name << ": " << healthy.status();
  }
  EXPECT_EQ(rpc::CheckHealth(channel, "nothing", absl::Seconds(10)).status().code(),
            absl::StatusCode::kNotFound);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = grpc::GenericStub(channel).PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  ASSERT_TRUE(next());
  // ServerReflectionRequest{list_services: "*"}, by hand: the service has no library of its own.
  const grpc::Slice request(std::string("\x3A\x01*"));
  call->Write(grpc::ByteBuffer(&request, 1), nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  ASSERT_TRUE(next());
  grpc::Slice bytes;
  ASSERT_TRUE(response.DumpToSingleSlice(&bytes).ok());
  const std::string services(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  EXPECT_THAT(services, HasSubstr("lockstep.v1.RolloutService"));
  EXPECT_THAT(services, HasSubstr("grpc.health.v1.Health"));
  context.TryCancel();
  queue.Shutdown();
  while (next()) {
  }
}

}  // namespace
}  // namespace lockstep
