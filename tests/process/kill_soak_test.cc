// kill -9 of workers in turn, again and again, under a load that does not pause. Goal: every
// request ends, with the bits of the quiet run. KILL_SOAK_REQUESTS says how many there are.
#include <signal.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/cli/wait_until.h"
#include "services/client/generate_batch.h"
#include "services/client/sample_bits.h"
#include "tests/process/local_cluster.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kTokens = 150;
constexpr size_t kAtOnce = 64;

v1::GenerateRequest Request(const std::string& prompt, uint64_t seed) {
  v1::GenerateRequest request;
  request.set_prompt_text(prompt);
  request.set_seed(seed);
  request.mutable_stop()->set_max_new_tokens(kTokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

bool RunsOn(LocalCluster* cluster, const std::string& worker) {
  const auto info = cluster->client().GetServerInfo();
  if (!info.ok() || info->workers_size() < 2) return false;
  for (const auto& entry : info->workers()) {
    if (entry.worker_id() == worker) return entry.running_sequences() >= 2;
  }
  return false;
}

TEST(KillSoakTest, WorkersKilledInTurnLoseNoAnswerAndNoBit) {
  const auto cluster = LocalCluster::Start();
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  client::RolloutClient& client = (*cluster)->client();
  std::vector<v1::GenerateRequest> kinds;
  std::vector<v1::Sample> expected;
  for (const char* prompt : {"Tell me a story:", "Say it with emoji:", "12+34*2=", "Greet Ada:"}) {
    for (uint64_t seed = 17; seed < 21; ++seed) {
      v1::GenerateRequest request = Request(prompt, seed);
      request.set_disable_prefix_cache(true);
      const auto answer = client.Generate(request);
      ASSERT_TRUE(answer.ok()) << answer.status();
      expected.push_back(answer->samples(0));
      kinds.push_back(Request(prompt, seed));
    }
  }
  std::vector<v1::GenerateRequest> requests;
  for (size_t i = 0; i < KILL_SOAK_REQUESTS; ++i) {
    requests.push_back(kinds[i % kinds.size()]);
    requests.back().set_routing_key(std::to_string(i % 7));
  }
  const auto batch = client::GenerateBatch::Start(client, requests, {.in_flight_max = kAtOnce});
  int kills = 0;
  while (batch->done_count() < requests.size()) {
    const std::string worker = kills % 2 == 0 ? "worker-0" : "worker-1";
    bool busy = false;
    // The last requests may end before the worker has any of them.
    ASSERT_TRUE(cli::WaitUntil(
        [&] {
          busy = RunsOn(cluster->get(), worker);
          return busy || batch->done_count() == requests.size();
        },
        absl::Seconds(60)));
    if (!busy) break;
    const uint64_t old = (*cluster)->IncarnationOf(worker);
    (*cluster)->Signal(worker, SIGKILL);
    ++kills;
    ASSERT_TRUE(cli::WaitUntil(
        [&] {
          const uint64_t now = (*cluster)->IncarnationOf(worker);
          return now != 0 && now != old;
        },
        absl::Seconds(30)));
  }
  const auto answers = batch->Wait();
  int64_t resumptions = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].ok()) << i << ": " << answers[i].status();
    const v1::Sample& sample = answers[i]->samples(0);
    resumptions += sample.usage().resumptions();
    EXPECT_EQ(client::FirstDifference(expected[i % expected.size()], sample), std::nullopt) << i;
  }
  std::printf("%zu answers, %d kills, %d resumptions\n", answers.size(), kills,
              static_cast<int>(resumptions));
  EXPECT_GE(kills, 3);
  EXPECT_GE(resumptions, kills);
}

}  // namespace
}  // namespace lockstep::testing
