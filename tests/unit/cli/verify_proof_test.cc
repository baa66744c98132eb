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
  kNoBatches
};

// Answers with a hash of the prompt. Routing keys choose one of two workers.
class FakeGateway final : public v1::RolloutService::CallbackService {
 public:
  FakeGateway()
      : steps_(&registry_, "lockstep_worker_batch_sequences", "Sequences in a step.",
               metrics::PowerOfTwoBuckets(10)),
        exposer_(metrics::Exposer::Start("127.0.0.1:0", registry_).value()) {}

  void Plant(Fault fault) { fault_ = fault; }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest*,
                                          v1::GetServerInfoResponse* response) override {
    for (const char* name : {"worker-0", "worker-1"}) {
      v1::WorkerInfo* worker = response->add_workers();
      worker->set_worker_id(name);
      worker->set_metrics_address(absl::StrCat("127.0.0.1:", exposer_->port()));
    }
    response->set_vocabulary(256);
    return Finish(context);
  }

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override {
    const bool quiet = request->disable_prefix_cache();
    const bool second = base::Hash64(request->routing_key()) % 2 == 1 && !quiet;
    uint64_t answer = base::Hash64(absl::StrCat(request->prompt_ids().ShortDebugString(),
                                                request->sampling().ShortDebugString()));
    v1::Sample* sample = response->add_samples();
    sample->mutable_usage()->set_worker_id(second ? "worker-1" : "worker-0");
    sample->set_text(absl::StrCat(answer));
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
      case Fault::kNone:
      case Fault::kNoBatches:
        break;
    }
    sample->set_token_ids(std::string(4, '\0'));
    sample->mutable_logprobs()->set_raw(
        std::string(reinterpret_cast<const char*>(&answer), sizeof(float)));
    if (fault_ != Fault::kNoBatches && !quiet) steps_.Observe(64);
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

TEST_F(VerifyProofTest, OneBitOfOneWorkerFails) {
  EXPECT_THAT(ErrorOf(Fault::kBitOfOneWorker, VerifySingle), HasSubstr("not deterministic"));
}

TEST_F(VerifyProofTest, TextCountsLikeLogprobs) {
  EXPECT_THAT(ErrorOf(Fault::kTextOfOneWorker, VerifySingle), HasSubstr("not deterministic"));
}

TEST_F(VerifyProofTest, AnAnswerThatMovesWithItsNeighboursFails) {
  EXPECT_THAT(ErrorOf(Fault::kNeighbours, VerifyNeighbours), HasSubstr("not deterministic"));
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
