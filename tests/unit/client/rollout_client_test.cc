#include "services/client/rollout_client.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/packed_array.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/client/arrays.h"
#include "services/client/generate_batch.h"
#include "tests/support/certificates.h"

namespace lockstep::client {
namespace {

using ::testing::HasSubstr;

// A gateway that gives up every sample after two more tokens until it has six: token i of a sample
// is 100 + i. Asked for prompt 13 it is out of luck.
class DrainingGateway final : public v1::RolloutService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override {
    std::string weights;
    {
      base::MutexLock lock(&mutex_);
      requests_.push_back(*request);
      response->mutable_fingerprint()->set_reduction_segments(
          static_cast<int>(requests_.size()) > calls_of_first_contract_ ? 2 : 1);
      weights = static_cast<int>(requests_.size()) > calls_of_first_weights_ ? "new" : "old";
    }
    auto* reactor = context->DefaultReactor();
    if (Fails()) {
      reactor->Finish({fail_code_, "not now"});
      return reactor;
    }
    if (request->prompt_ids().ids(0) == 13) {
      reactor->Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too busy"});
      return reactor;
    }
    response->set_prompt_ids(base::PackArray<uint32_t>({7, 8}));
    for (int64_t i = 0; i < (request->has_n() ? request->n() : 1); ++i) {
      v1::Sample* sample = response->add_samples();
      sample->set_index(request->first_sample_index() + i);
      sample->set_sub_seed(1000 + static_cast<uint64_t>(sample->index()));
      std::vector<uint32_t> ids;
      while (static_cast<int>(ids.size()) < request->generated_ids_size() + 2) {
        ids.push_back(100 + static_cast<uint32_t>(ids.size()));
      }
      sample->set_token_ids(base::PackArray(ids));
      sample->mutable_receipt()->add_weights_digests(weights);
      sample->set_finish_reason(ids.size() < 6 ? v1::FINISH_REASON_PARTIAL
                                               : v1::FINISH_REASON_LENGTH);
      if (request->logprobs().has_prompt_from()) {
        sample->mutable_prompt_logprobs()->set_raw(std::string(4, '\1'));
      }
    }
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::vector<v1::GenerateRequest> requests() {
    base::MutexLock lock(&mutex_);
    return requests_;
  }
  // After `first` calls that do not fail.
  void FailNext(int calls, grpc::StatusCode code, int first = 0) {
    base::MutexLock lock(&mutex_);
    calls_before_ = first;
    fail_calls_ = calls;
    fail_code_ = code;
  }
  // After so many calls another cluster answers.
  void ChangeContractAfter(int calls) {
    base::MutexLock lock(&mutex_);
    calls_of_first_contract_ = calls;
  }
  void ChangeWeightsAfter(int calls) {
    base::MutexLock lock(&mutex_);
    calls_of_first_weights_ = calls;
  }

 private:
  bool Fails() {
    base::MutexLock lock(&mutex_);
    if (calls_before_ > 0 && calls_before_-- > 0) return false;
    return fail_calls_ > 0 && fail_calls_-- > 0;
  }

  base::Mutex mutex_;
  int calls_before_ ABSL_GUARDED_BY(mutex_) = 0;
  int fail_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<grpc::StatusCode> fail_code_ = grpc::StatusCode::OK;
  int calls_of_first_contract_ ABSL_GUARDED_BY(mutex_) = 1000;
  int calls_of_first_weights_ ABSL_GUARDED_BY(mutex_) = 1000;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

class RolloutClientTest : public ::testing::Test {
 protected:
  DrainingGateway gateway_;
  std::unique_ptr<rpc::Server> server_ =
      rpc::Server::Start({.address = "127.0.0.1:0"}, {&gateway_}).value();
  RolloutClient client_{
      {.target = "127.0.0.1:" + std::to_string(server_->port()), .timeout = absl::Seconds(30)}};
};

v1::GenerateRequest RequestWith(int64_t id) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(id);
  return request;
}

TEST_F(RolloutClientTest, ContinuesPartialSamplesUntilTheyEnd) {
  v1::GenerateRequest request;
  request.set_request_id("mine");
  request.mutable_prompt_ids()->add_ids(1);
  request.set_n(2);
  request.set_seed(5);
  request.mutable_logprobs()->set_prompt_from(1);
  const auto response = client_.Generate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->samples_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ReadIds(response->samples(i).token_ids()),
              (std::vector<uint32_t>{100, 101, 102, 103, 104, 105}));
    EXPECT_EQ(response->samples(i).index(), i);
    EXPECT_EQ(response->samples(i).finish_reason(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(response->samples(i).prompt_logprobs().raw(), std::string(4, '\1'));
  }
  // One call for all, then two continuations for each sample.
  const auto calls = gateway_.requests();
  ASSERT_EQ(calls.size(), 5u);
  const v1::GenerateRequest& next = calls[2];
  EXPECT_EQ(next.request_id(), "");
  EXPECT_EQ(next.generated_ids_size(), 4);
  EXPECT_EQ(next.exact_seed(), 1000u);
  EXPECT_EQ(next.prompt_ids().ids_size(), 2);
  EXPECT_FALSE(next.logprobs().has_prompt_from());
  EXPECT_EQ(calls[3].first_sample_index(), 1);
}

TEST_F(RolloutClientTest, BeginsAnewWhereAnotherContractOrOtherWeightsWouldContinue) {
  for (const bool contract : {true, false}) {
    // The first answer has four ids less, and one sample was continued once.
    const int before = static_cast<int>(gateway_.requests().size());
    if (contract) {
      gateway_.ChangeContractAfter(before + 2);
    } else {
      gateway_.ChangeWeightsAfter(before + 2);
    }
    v1::GenerateRequest request = RequestWith(1);
    request.set_request_id("mine");
    request.set_n(2);
    const auto response = client_.Generate(request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->fingerprint().reduction_segments(), 2);
    ASSERT_EQ(response->samples_size(), 2);
    for (const v1::Sample& sample : response->samples()) {
      EXPECT_EQ(sample.receipt().weights_digests(0), contract ? "old" : "new");
      EXPECT_EQ(ReadIds(sample.token_ids()).size(), 6u);
    }
    // Three calls to find out, then all five again, the first of them as the caller made it.
    const auto calls = gateway_.requests();
    ASSERT_EQ(static_cast<int>(calls.size()), before + 8);
    EXPECT_EQ(calls[static_cast<size_t>(before) + 3].request_id(), "mine");
    EXPECT_EQ(calls[static_cast<size_t>(before) + 3].generated_ids_size(), 0);
  }
}

TEST_F(RolloutClientTest, BatchKeepsOrderAndErrorsOfSingleRequests) {
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(RequestWith(i));
  const auto batch = GenerateBatch::Start(client_, requests, {.in_flight_max = 7});
  const auto answers = batch->Wait();
  ASSERT_EQ(answers.size(), requests.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].status().code(),
              i == 13 ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk);
  }
  EXPECT_EQ(batch->done_count(), 40u);
}

TEST_F(RolloutClientTest, BatchMakesCallsAgainAndContinuesPartialSamplesAsSingleCallsDo) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED}) {
    const size_t before = gateway_.requests().size();
    gateway_.FailNext(5, code);
    std::vector<v1::GenerateRequest> requests;
    for (int i = 20; i < 30; ++i) requests.push_back(RequestWith(i));
    const auto answers = GenerateBatch::Start(client_, requests, {.in_flight_max = 3})->Wait();
    for (const auto& answer : answers) {
      ASSERT_TRUE(answer.ok()) << answer.status();
      ASSERT_EQ(answer->samples_size(), 1);
      EXPECT_EQ(ReadIds(answer->samples(0).token_ids()).size(), 6u);
      EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_LENGTH);
    }
    // Three parts of each, and nothing twice but what failed.
    EXPECT_EQ(gateway_.requests().size(), before + 3 * requests.size() + 5);
  }
}

TEST_F(RolloutClientTest, BatchThatNobodyAnswersEndsAsAWhole) {
  // The first two are tried after 50 and 100 ms once more; those after them come too late for that.
  RolloutClient lost(
      {.target = "127.0.0.1:1", .timeout = absl::Seconds(60), .retry = absl::Milliseconds(190)});
  const std::vector<v1::GenerateRequest> requests(50, RequestWith(1));
  const auto answers = GenerateBatch::Start(lost, requests, {.in_flight_max = 2})->Wait();
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].status().code(), absl::StatusCode::kUnavailable);
    if (i < 2) continue;
    EXPECT_THAT(std::string(answers[i].status().message()), HasSubstr(" was tried once, for "));
  }
}

// As while a gateway drains, and while it ends.
TEST_F(RolloutClientTest, MakesACallAgainThatItsGatewayRefusedOrLost) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED}) {
    const size_t before = gateway_.requests().size();
    gateway_.FailNext(2, code);
    v1::GenerateRequest request = RequestWith(1);
    request.set_request_id("mine");
    const auto response = client_.Generate(request);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(ReadIds(response->samples(0).token_ids()).size(), 6u);
    // Two that failed, the first part, two continuations.
    const auto calls = gateway_.requests();
    ASSERT_EQ(calls.size(), before + 5);
    EXPECT_EQ(calls[before + 2].request_id(), "mine");
  }
  gateway_.FailNext(1, grpc::StatusCode::INTERNAL);
  EXPECT_EQ(client_.Generate(RequestWith(1)).status().code(), absl::StatusCode::kInternal);
}

TEST_F(RolloutClientTest, AContinuationThatFailsForGoodLosesNoToken) {
  for (const bool batch : {false, true}) {
    gateway_.FailNext(1, grpc::StatusCode::INTERNAL, /*first=*/2);
    const auto answer = batch ? GenerateBatch::Start(client_, {RequestWith(1)}, {})->Wait()[0]
                              : client_.Generate(RequestWith(1));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(ReadIds(answer->samples(0).token_ids()).size(), 4u);
    EXPECT_EQ(answer->samples(0).finish_reason(), v1::FINISH_REASON_PARTIAL);
    EXPECT_THAT(answer->samples(0).error().message(), HasSubstr("not now"));
  }
}

TEST_F(RolloutClientTest, AnEmptyBatchEndsAtOnce) {
  EXPECT_TRUE(GenerateBatch::Start(client_, {}, {})->Wait().empty());
}

TEST_F(RolloutClientTest, SaysThatNobodyIsThere) {
  RolloutClient lost(
      {.target = "127.0.0.1:1", .timeout = absl::Seconds(5), .retry = absl::Milliseconds(100)});
  const absl::Status status = lost.Generate(RequestWith(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              ::testing::MatchesRegex("127.0.0.1:1 was tried [2-9] times, for [0-9.]+ s: conn.*"));
}

// A server with TLS, and clients that are set as it is, or not.
class TlsClientTest : public ::testing::Test {
 protected:
  TlsClientTest() {
    authority_.Issue("gateway", "gateway");
    authority_.Issue("trainer", "trainer");
    other_authority_.Issue("stranger", "trainer");
    security_ = SecurityOf("gateway", authority_);
    server_ = StartServer({.address = "127.0.0.1:0",
                           .security = security_,
                           .access = {{"/lockstep.v1.RolloutService/", {"trainer"}}}});
  }
  ~TlsClientTest() override { std::filesystem::remove_all(directory_); }

  std::shared_ptr<const rpc::Security> SecurityOf(const std::string& name,
                                                  const testing::CertificateAuthority& peers) {
    return rpc::Security::Create({.certificate = directory_ + "/" + name + ".pem",
                                  .key = directory_ + "/" + name + ".key",
                                  .authorities = peers.path()})
        .value();
  }
  std::unique_ptr<rpc::Server> StartServer(rpc::ServerOptions options) {
    return rpc::Server::Start(std::move(options), {&gateway_}).value();
  }
  std::unique_ptr<RolloutClient> ClientOf(const rpc::Server& server,
                                          std::shared_ptr<const rpc::Security> security,
                                          absl::Duration retry) {
    return std::make_unique<RolloutClient>(RolloutClient::Options{
        .target = absl::StrCat("127.0.0.1:", server.port()),
        .timeout = absl::Seconds(30),
        .retry = retry,
        .channel = {.security = std::move(security), .peer_name = peer_name_}});
  }

  const std::string directory_ = ::testing::TempDir() + absl::StrCat("client-tls-", getpid());
  const bool made_ = std::filesystem::create_directory(directory_);
  testing::CertificateAuthority authority_{directory_};
  testing::CertificateAuthority other_authority_{directory_, "others"};
  std::shared_ptr<const rpc::Security> security_;
  std::string peer_name_ = "gateway";
  DrainingGateway gateway_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(TlsClientTest, EndsAtOnceAndSaysWhyWhereTlsCannotComeAbout) {
  const auto plaintext = StartServer({.address = "127.0.0.1:0"});
  struct Case {
    const rpc::Server* server;
    std::shared_ptr<const rpc::Security> security;
    const char* peer_name;
    const char* hint;
  };
  const auto trainer = SecurityOf("trainer", authority_);
  for (const Case& c : {
           Case{server_.get(), trainer, "wrong", "is not for the name \"wrong\""},
           Case{server_.get(), trainer, "", "is not for the target's name"},
           Case{server_.get(), SecurityOf("trainer", other_authority_), "gateway",
                "of none of the authorities given"},
           Case{plaintext.get(), trainer, "gateway", "speaks without TLS"},
       }) {
    peer_name_ = c.peer_name;
    // Another try would come within this time.
    const auto client = ClientOf(*c.server, c.security, absl::Seconds(25));
    const absl::Status status = client->Generate(RequestWith(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(" was tried once, for ")) << c.hint;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.hint));
  }
}

// A server that ends looks the same, so these are tried again.
TEST_F(TlsClientTest, TriesAgainAndHintsWhereTlsMayBeTheCause) {
  for (const bool secure : {false, true}) {
    const auto client = ClientOf(*server_, secure ? SecurityOf("stranger", authority_) : nullptr,
                                 absl::Milliseconds(200));
    const absl::Status status = client->Generate(RequestWith(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(" times, for ")) << secure;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(secure ? "may not take the certificate" : "may want TLS"));
  }
}

// As where a name has several gateways, and one of them has a wrong certificate.
TEST_F(TlsClientTest, AClientThatWasAnsweredBeforeTriesAgain) {
  const int port = server_->port();
  const auto client =
      ClientOf(*server_, SecurityOf("trainer", authority_), absl::Milliseconds(300));
  ASSERT_TRUE(client->Generate(RequestWith(1)).ok());
  server_.reset();
  server_ = StartServer({.address = absl::StrCat("127.0.0.1:", port)});
  const absl::Status status = client->Generate(RequestWith(1)).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(" times, for "));
}

}  // namespace
}  // namespace lockstep::client
