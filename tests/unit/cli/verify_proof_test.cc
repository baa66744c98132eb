// verify must be able to fail: a gateway with one planted fault at a time, and loads that did not
// happen.
#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/metrics/buckets.h"
#include "common/metrics/exposer.h"
#include "common/metrics/metric.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/verbs.h"
#include "services/cli/verify/modes.h"
#include "services/cli/verify/proof.h"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;

enum class Fault {
  kNone,
  kBitOfOneWorker,
  kTextOfOneWorker,
  kNeighbours,
  kOneWorkerOnly,
  kDeadline,
  kNoBatches
};

// Answers with a hash of the prompt. Routing keys choose one of two workers.
class FakeGateway final : public v1::RolloutService::CallbackService {
 public:
  FakeGateway()
      : steps_(&registry_, "lockstep_worker_batch_sequences", "Sequences in a step.",
               metrics::PowerOfTwoBuckets(10)),
        cuts_(&registry_, "lockstep_worker_prefill_cuts_total", "Chunks before the last."),
        exposer_(metrics::Exposer::Start({.address = "127.0.0.1:0"}, registry_).value()) {}

  void Plant(Fault fault) { fault_ = fault; }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::GetServerInfoResponse* response) override {
    for (const char* name : {"worker-0", "worker-1"}) {
      v1::WorkerInfo* worker = response->add_workers();
      worker->set_worker_id(name);
      worker->set_kv_block_tokens(16);
      worker->set_kv_blocks(64);
      worker->set_metrics_address(absl::StrCat("127.0.0.1:", exposer_->port()));
    }
    response->set_vocabulary(256);
    response->set_context_tokens_max(4096);
    response->mutable_fingerprint()->set_split_kv_size(64);
    return Finish(context);
  }

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override {
    // Runs that say what to expect leave the choice of a worker to the cluster.
    const bool quiet = request->routing_key().empty();
    const bool second = base::Hash64(request->routing_key()) % 2 == 1 && !quiet;
    uint64_t answer = base::Hash64(absl::StrCat(request->prompt_ids().ShortDebugString(),
                                                request->sampling().ShortDebugString()));
    v1::Sample* sample = response->add_samples();
    sample->mutable_usage()->set_worker_id(second ? "worker-1" : "worker-0");
    sample->set_text(absl::StrCat(answer));
    sample->set_finish_reason(v1::FINISH_REASON_LENGTH);
    switch (fault_.load()) {
      case Fault::kBitOfOneWorker:
        answer ^= second;
        break;
      case Fault::kTextOfOneWorker:
        if (second) sample->set_text("another");
        break;
      case Fault::kNeighbours:
        // As if a row's path hung on its neighbour: every eighth answer that has company moves.
        answer ^= !quiet && count_.fetch_add(1) % 8 == 7;
        break;
      case Fault::kOneWorkerOnly:
        if (!request->stop().ignore_eos()) break;
        sample->mutable_usage()->set_worker_id("worker-0");
        break;
      case Fault::kDeadline:
        if (!quiet && request->stop().ignore_eos()) {
          sample->set_finish_reason(v1::FINISH_REASON_ABORT);
        }
        break;
      case Fault::kNone:
      case Fault::kNoBatches:
        break;
    }
    sample->set_token_ids(std::string(4, '\0'));
    sample->mutable_logprobs()->set_raw(
        std::string(reinterpret_cast<const char*>(&answer), sizeof(float)));
    if (fault_ != Fault::kNoBatches && !quiet) {
      steps_.Observe(64);
      cuts_.Increment();
    }
    return Finish(context);
  }

 private:
  grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  std::atomic<Fault> fault_ = Fault::kNone;
  std::atomic<int> count_ = 0;
  metrics::Registry registry_;
  metrics::Histogram steps_;
  metrics::Counter cuts_;
  std::unique_ptr<metrics::Exposer> exposer_;
};

class VerifyProofTest : public ::testing::Test {
 protected:
  std::string ErrorOf(Fault fault, absl::Status (*verify)(Subject*, const VerifyOptions&)) {
    gateway_.Plant(fault);
    auto subject = Subject::Connect(&cluster_);
    if (!subject.ok()) return subject.status().ToString();
    return std::string(verify(&*subject, {.trials = 4}).message());
  }

  FakeGateway gateway_;
  std::unique_ptr<rpc::Server> server_ =
      rpc::Server::Start({.address = "127.0.0.1:0"}, {&gateway_}).value();
  client::RolloutClient cluster_{{.target = absl::StrCat("127.0.0.1:", server_->port())}};
};

TEST_F(VerifyProofTest, HoldsWithoutAFault) {
  EXPECT_EQ(ErrorOf(Fault::kNone, VerifySingle), "");
  EXPECT_EQ(ErrorOf(Fault::kNone, VerifyNeighbours), "");
}

TEST_F(VerifyProofTest, LongRunsEveryTrialThoughFewFitAtOnce) {
  auto subject = Subject::Connect(&cluster_);
  ASSERT_TRUE(subject.ok()) << subject.status();
  constexpr int64_t kTrials = 50;
  // One of each fills most of a worker's KV.
  EXPECT_EQ(
      VerifyLong(&*subject, {.trials = kTrials, .long_prompt_tokens = 500, .long_new_tokens = 400}),
      absl::OkStatus());
  ASSERT_EQ(subject->records().size(), 1u);
  for (const auto& prompt : subject->records()[0]["prompts"]) {
    EXPECT_EQ(prompt["samples"], kTrials) << prompt["prompt"];
  }
}

TEST_F(VerifyProofTest, TheRecordTellsWhichWorkerDiffers) {
  gateway_.Plant(Fault::kBitOfOneWorker);
  auto subject = Subject::Connect(&cluster_);
  ASSERT_TRUE(subject.ok()) << subject.status();
  EXPECT_FALSE(VerifySingle(&*subject, {.trials = 4}).ok());
  for (const auto& prompt : subject->records().at(0)["prompts"]) {
    EXPECT_EQ(prompt["unique"], 2) << prompt["prompt"];
    EXPECT_EQ(prompt["by_worker"]["worker-0"]["unique"], 1) << prompt["prompt"];
    EXPECT_EQ(prompt["by_worker"]["worker-1"]["unique"], 2) << prompt["prompt"];
  }
}

TEST_F(VerifyProofTest, RunsTheModesThatItIsGivenAndNoOthers) {
  const auto verify = [this](const std::string& modes) {
    return std::string(RunVerify({absl::StrCat("--target=127.0.0.1:", server_->port()),
                                  "--mode=" + modes, "--trials=4"})
                           .message());
  };
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(verify("neighbours,single"), "");
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(printed, ::testing::StartsWith("single\n"));
  EXPECT_THAT(printed, HasSubstr("\nneighbours\n"));
  EXPECT_THAT(printed, HasSubstr("2 of 2 modes held"));
  EXPECT_THAT(verify("single,sinlge"), HasSubstr("'sinlge' is none of all, single, mixed"));
}

TEST_F(VerifyProofTest, OneBitOfOneWorkerFails) {
  EXPECT_THAT(ErrorOf(Fault::kBitOfOneWorker, VerifySingle), HasSubstr("not deterministic"));
}

TEST_F(VerifyProofTest, TextCountsLikeLogprobs) {
  EXPECT_THAT(ErrorOf(Fault::kTextOfOneWorker, VerifySingle), HasSubstr("not deterministic"));
}

TEST_F(VerifyProofTest, AnAnswerThatMovesWithItsNeighboursFails) {
  EXPECT_THAT(ErrorOf(Fault::kNeighbours, VerifyNeighbours), HasSubstr("not deterministic"));
}

TEST_F(VerifyProofTest, ASampleThatADeadlineCutsSaysNothingAboutBits) {
  EXPECT_EQ(ErrorOf(Fault::kDeadline, VerifySingle),
            "sample 0 is cut short: --timeout passed, or somebody aborted it");
}

TEST_F(VerifyProofTest, FailoverWantsTheRunDirectoryBeforeAnyModeRuns) {
  ::testing::internal::CaptureStdout();
  const absl::Status status = RunVerify({absl::StrCat("--target=127.0.0.1:", server_->port()),
                                         "--mode=single,failover", "--run_dir=/no/such"});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--run_dir: /no/such/worker-0.pid: cannot be opened"));
}

TEST_F(VerifyProofTest, SamplesMustComeFromEveryWorker) {
  EXPECT_THAT(ErrorOf(Fault::kOneWorkerOnly, VerifySingle),
              HasSubstr("no sample came from worker-1"));
}

TEST_F(VerifyProofTest, ALoadThatMadeNoBatchesProvesNothing) {
  EXPECT_THAT(ErrorOf(Fault::kNoBatches, VerifySingle), HasSubstr("so nothing was proved"));
}

}  // namespace
}  // namespace lockstep::cli
