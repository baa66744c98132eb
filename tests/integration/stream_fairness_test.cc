// GenerateMany streams share what the gateway has in work, whatever each of them has waiting.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::ClusterHarness;

using Stream = grpc::ClientReaderWriterInterface<v1::GenerateManyRequest, v1::GenerateManyResponse>;

// One prompt for a stream that may have as many in work as it likes.
v1::GenerateManyRequest Item(const std::string& id) {
  v1::GenerateManyRequest item;
  v1::GenerateRequest* request = item.mutable_generate();
  request->set_request_id(id);
  request->mutable_prompt_ids()->add_ids(7);
  request->mutable_stop()->set_max_new_tokens(200);
  request->mutable_stop()->set_ignore_eos(true);
  return item;
}

std::unique_ptr<Stream> Open(ClusterHarness* cluster, grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  auto stream = cluster->stub()->GenerateMany(context);
  v1::GenerateManyRequest first;
  first.mutable_options()->set_slots_max(65536);
  EXPECT_TRUE(stream->Write(first));
  return stream;
}

TEST(StreamFairnessTest, AStreamWithFewPromptsIsServedBesideOneWithMany) {
  constexpr int kMany = 600;
  constexpr int kFew = 20;
  ClusterHarness cluster({.stream_slots_total = 4});
  const absl::Status status = cluster.Start();
  ASSERT_TRUE(status.ok()) << status;
  const auto answered = [&] { return cluster.GatewayMetric("lockstep_gateway_samples_total"); };

  // Its client does not even read what is answered.
  grpc::ClientContext many_context;
  const auto many = Open(&cluster, &many_context);
  for (int i = 0; i < kMany; ++i) ASSERT_TRUE(many->Write(Item(absl::StrCat("many-", i))));
  many->WritesDone();
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return answered() >= 10; }));

  grpc::ClientContext few_context;
  const auto few = Open(&cluster, &few_context);
  for (int i = 0; i < kFew; ++i) ASSERT_TRUE(few->Write(Item(absl::StrCat("few-", i))));
  few->WritesDone();
  v1::GenerateManyResponse response;
  for (int i = 0; i < kFew; ++i) {
    ASSERT_TRUE(few->Read(&response));
    EXPECT_TRUE(response.has_response()) << response.error().message();
  }
  EXPECT_LE(cluster.GatewayMetric("lockstep_gateway_stream_slots_used"), 4);
  // First come, first served would have ended all of the others before.
  EXPECT_LT(answered(), kMany / 2);
  EXPECT_FALSE(few->Read(&response));
  EXPECT_TRUE(few->Finish().ok());

  int count = 0;
  while (many->Read(&response)) count += response.has_response();
  EXPECT_TRUE(many->Finish().ok());
  EXPECT_EQ(count, kMany);
}

TEST(RequestFairnessTest, ASingleRequestDoesNotWaitForAllOfALargeGroup) {
  constexpr int kGroup = 160;
  constexpr int kAtOnce = 8;
  ClusterHarness cluster({.workers = 1, .sequences_max = kAtOnce});
  const absl::Status status = cluster.Start();
  ASSERT_TRUE(status.ok()) << status;
  const auto ended = [&] { return cluster.GatewayMetric("lockstep_gateway_samples_total"); };
  v1::GenerateRequest group = Item("group").generate();
  group.set_n(kGroup);
  testing::GenerateCalls calls(cluster.stub());
  calls.Start(group);
  ASSERT_TRUE(ClusterHarness::WaitUntil([&] { return ended() > 0; }));
  v1::GenerateRequest single = Item("single").generate();
  single.mutable_stop()->set_max_new_tokens(1);
  const double before = ended();
  ASSERT_TRUE(testing::GenerateAll(cluster.stub(), {single})[0].ok());
  // The rest of a turn, the next one, what runs, and what ends while this is being read.
  EXPECT_LT(ended() - before, 16 + 16 + 3 * kAtOnce);
  EXPECT_EQ(calls.finished_count(), 0u);
  EXPECT_TRUE(calls.Wait()[0].ok());
}

}  // namespace
}  // namespace lockstep
