// kill -9 of the worker that serves a sequence, at points that are defined by what has come of the
// answer: in prefill, after the first token, inside a stop string and inside a character, among
// the last tokens, and at seeded positions. Goal: the answer goes on elsewhere with the bits, the
// text and the end of the quiet run, soon.
//
// Method: the client kills the worker as soon as it has seen the token it waits for. Long prompts
// that are prefilled beside it make each step slow by then, so that few more tokens pass meanwhile.
// The router's log says where the sequence really moved, and a kill that hit another position than
// meant is made again. The other worker has never seen the prompt.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "services/cli/wait_until.h"
#include "services/client/arrays.h"
#include "services/client/generate_batch.h"
#include "services/client/sample_bits.h"
#include "tests/process/member_cluster.h"
#include "tests/process/stream_record.h"

namespace lockstep::testing {
namespace {

constexpr int kTriesMax = 60;
constexpr int64_t kChunkTokens = 256;
// How many tokens before the kill the load begins, since it takes a while to arrive, and how much
// it is: some forty chunks. From then on a token takes far longer than the way of a kill.
constexpr int64_t kLoadTokens = 40;
constexpr size_t kLoadPrompts = 8;
constexpr int64_t kLoadPromptTokens = 1500;
constexpr char kChunks[] = "lockstep_worker_prefill_chunks_total";

class KillPointsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started = MemberCluster::Start(
        {.cluster = {.model = "deploy/demo-model", .kv_mib = 64, .chunk_tokens = kChunkTokens}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override { ASSERT_NE(cluster_, nullptr); }
  void TearDown() override {
    RecordProperty("kills", kills_);
    RecordProperty("gap_max_ms", static_cast<int>(absl::ToInt64Milliseconds(gap_max_)));
    std::printf("%d kills, longest gap %s\n", kills_, absl::FormatDuration(gap_max_).c_str());
    EXPECT_LE(gap_max_, cluster_->lease() + absl::Seconds(1));
  }

  // A request that one and the same worker takes as long as both live.
  static v1::GenerateRequest Request(const std::string& prompt, int64_t new_tokens) {
    v1::GenerateRequest request;
    request.set_prompt_text(prompt);
    request.set_seed(17);
    request.mutable_stop()->set_max_new_tokens(new_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    request.set_routing_key(prompt);
    return request;
  }

  // The answer that nothing disturbed.
  static StreamRecord Quiet(
      v1::GenerateRequest request,
      const std::function<void(size_t, const std::string&)>& on_tokens = nullptr) {
    request.set_disable_prefix_cache(true);
    StreamRecord record = ReadStream(&cluster_->client(), request, on_tokens);
    EXPECT_TRUE(record.status.ok()) << record.status;
    EXPECT_EQ(record.sample.usage().resumptions(), 0);
    return record;
  }

  static size_t TokenCount(const v1::Sample& sample) {
    return sample.token_ids().size() / sizeof(uint32_t);
  }

  // Of the first `count` ids, as far as it is certain. Not from a stream's deltas, of which one may
  // bring several tokens when the machine is busy.
  static std::string TextOf(const std::vector<uint32_t>& ids, size_t count) {
    v1::DetokenizeRequest request;
    request.mutable_ids()->Add(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
    request.set_skip_special_tokens(true);
    const auto text = cluster_->client().Detokenize(request);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? text->text() : "";
  }

  // Outputs that the router had when it moved the sequence of a request, if it did since its log
  // had `begin` bytes.
  static std::optional<int64_t> MovedAt(size_t begin, const std::string& request_id) {
    const std::string log = cluster_->Log("router");
    const size_t sequence = log.find(absl::StrCat("sequence=", request_id, "/"), begin);
    if (sequence == std::string::npos) return std::nullopt;
    const size_t move = log.rfind("sequence_moves", sequence);
    if (move == std::string::npos || move < begin) return std::nullopt;
    const size_t field = log.find(" outputs=", move) + 9;
    int64_t outputs = -1;
    EXPECT_TRUE(absl::SimpleAtoi(
        absl::string_view(log).substr(field, log.find_first_of(" \n", field) - field), &outputs));
    return outputs;
  }

  // Kills the worker of `request` around output position `wanted` until a sequence moved at one of
  // `hits`; every answer on the way has to equal `quiet`.
  void KillAt(const v1::GenerateRequest& request, const v1::Sample& quiet, int64_t wanted,
              const std::set<int64_t>& hits) {
    int64_t aim = wanted;
    std::string home = quiet.usage().worker_id();
    for (int attempt = 0; attempt < kTriesMax; ++attempt) {
      const std::optional<int64_t> moved =
          KillOnce(request, quiet, aim, std::max<int64_t>(1, aim - kLoadTokens), &home);
      if (HasFailure()) return;
      if (moved.has_value() && hits.contains(*moved)) return;
      // Who came when all was over came that late at least. Half of a miss, since the next kill's
      // way takes another time; one at least, or the aim would stand still.
      const int64_t answer = static_cast<int64_t>(TokenCount(quiet));
      const int64_t late = moved.value_or(answer) - wanted;
      aim = std::clamp<int64_t>(aim - (late > 0 ? (late + 1) / 2 : late / 2 - 1), 1, answer - 1);
    }
    FAIL() << "no kill hit position " << wanted << " in " << kTriesMax << " tries";
  }

  // Loads the worker when the client has seen `load_at` tokens and kills it at `aim`; where the
  // sequence moved. `home` is who is killed; a worker that had just come back may not have been
  // known to the router when the quiet run took place, so it is corrected by where the answer
  // ended.
  std::optional<int64_t> KillOnce(v1::GenerateRequest request, const v1::Sample& quiet, int64_t aim,
                                  int64_t load_at, std::string* home) {
    request.set_request_id(absl::StrCat("kill-", ++requests_));
    SCOPED_TRACE(absl::StrCat("kill after ", aim, " tokens of \"", request.prompt_text(), "\""));
    const std::string worker = *home;
    const uint64_t life = cluster_->IncarnationOf(worker);
    const size_t log_begin = cluster_->Log("router").size();
    EXPECT_TRUE(cluster_->client().FlushCache().ok());
    bool killed = false;
    std::shared_ptr<client::GenerateBatch> load;
    const StreamRecord record =
        ReadStream(&cluster_->client(), request, [&](size_t tokens, const std::string&) {
          const int64_t seen = static_cast<int64_t>(tokens);
          if (load == nullptr && seen >= load_at) load = StartLoad(request);
          if (killed || seen < aim) return;
          killed = true;
          cluster_->Signal(worker, SIGKILL);
        });
    EXPECT_TRUE(record.status.ok()) << record.status;
    EXPECT_TRUE(killed);
    if (load != nullptr) load->Wait();
    const std::optional<int64_t> moved = MovedAt(log_begin, request.request_id());
    CheckAnswer(quiet, record.sample, moved.has_value());
    if (moved.has_value()) {
      EXPECT_NE(record.sample.usage().worker_id(), worker);
      ++kills_;
    } else {
      *home = record.sample.usage().worker_id();
    }
    gap_max_ = std::max(gap_max_, record.gap_max);
    Revive(worker, life);
    return moved;
  }

  // Prompts for the worker of `request` that take it a while to prefill.
  static std::shared_ptr<client::GenerateBatch> StartLoad(const v1::GenerateRequest& request) {
    std::vector<v1::GenerateRequest> prompts(kLoadPrompts);
    for (v1::GenerateRequest& prompt : prompts) {
      for (int64_t i = 0; i < kLoadPromptTokens; ++i) prompt.mutable_prompt_ids()->add_ids(i % 97);
      prompt.mutable_stop()->set_max_new_tokens(1);
      prompt.set_disable_prefix_cache(true);
      prompt.set_routing_key(request.routing_key());
    }
    return client::GenerateBatch::Start(cluster_->client(), std::move(prompts), {});
  }

  // Kills the worker of `request` when it has computed so many chunks of the prompt.
  void KillInPrefill(v1::GenerateRequest request, const v1::Sample& quiet, double chunks) {
    request.set_request_id(absl::StrCat("kill-", ++requests_));
    const std::vector<std::string> workers = {"worker-0", "worker-1"};
    std::vector<uint64_t> lives;
    std::vector<double> before;
    for (const std::string& worker : workers) {
      lives.push_back(cluster_->IncarnationOf(worker));
      before.push_back(cluster_->Metric(worker, kChunks));
    }
    const size_t log_begin = cluster_->Log("router").size();
    ASSERT_TRUE(cluster_->client().FlushCache().ok());
    const auto batch = client::GenerateBatch::Start(cluster_->client(), {request}, {});
    size_t victim = 0;
    ASSERT_TRUE(cli::WaitUntil(
        [&] {
          victim = 1 - victim;
          return cluster_->Metric(workers[victim], kChunks) >= before[victim] + chunks;
        },
        absl::Seconds(30), absl::Milliseconds(1)));
    cluster_->Signal(workers[victim], SIGKILL);
    const auto answer = batch->Wait()[0];
    ASSERT_TRUE(answer.ok()) << answer.status();
    CheckAnswer(quiet, answer->samples(0), true);
    EXPECT_EQ(answer->samples(0).usage().worker_id(), workers[1 - victim]);
    EXPECT_EQ(MovedAt(log_begin, request.request_id()), 0);
    ++kills_;
    Revive(workers[victim], lives[victim]);
  }

  static void CheckAnswer(const v1::Sample& quiet, const v1::Sample& sample, bool moved) {
    EXPECT_EQ(client::FirstDifference(quiet, sample), std::nullopt);
    EXPECT_EQ(sample.usage().resumptions(), moved ? 1 : 0);
    // Neither worker knew the prompt.
    EXPECT_EQ(sample.usage().cached_tokens(), 0);
  }

  static void Revive(const std::string& worker, uint64_t old_life) {
    cluster_->Kill(worker);
    ASSERT_TRUE(cluster_->StartMember(worker).ok());
    ASSERT_TRUE(cluster_->WaitForNewLife(worker, old_life)) << worker;
  }

  static std::unique_ptr<MemberCluster> cluster_;
  std::mt19937 random_{20240229};
  int kills_ = 0;
  static inline int requests_ = 0;  // Ids are never used twice in a cluster.
  absl::Duration gap_max_;
};
std::unique_ptr<MemberCluster> KillPointsTest::cluster_;

TEST_F(KillPointsTest, DuringThePrefillOfALongPrompt) {
  v1::GenerateRequest request = Request("", 24);
  request.set_routing_key("long");
  for (int64_t i = 0; i < 2700; ++i) {
    request.mutable_prompt_ids()->add_ids(16 + (i * i + 7 * i) % 430);
  }
  for (const bool scored : {false, true}) {
    if (scored) request.mutable_logprobs()->set_prompt_from(1);
    const v1::Sample quiet = Quiet(request).sample;
    // The kill comes inside the chunk after this many.
    for (const double chunks : {1, scored ? 3 : 5, 8}) {
      SCOPED_TRACE(absl::StrCat("kill after ", chunks, " chunks, scored: ", scored));
      KillInPrefill(request, quiet, chunks);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(KillPointsTest, AmongTheFirstTokens) {
  for (const char* prompt : {"Tell me a story:", "Say it with emoji:", "12+34*2="}) {
    const v1::GenerateRequest request = Request(prompt, 60);
    KillAt(request, Quiet(request).sample, 1, {1, 2, 3, 4, 5, 6});
  }
}

TEST_F(KillPointsTest, InsideAStopStringOverManyTokens) {
  constexpr size_t kBegin = 60;
  constexpr size_t kEnd = 90;
  v1::GenerateRequest request = Request("Tell me a story:", 200);
  const std::vector<uint32_t> ids = client::ReadIds(Quiet(request).sample.token_ids());
  const std::string before = TextOf(ids, kBegin);
  const std::string stop = TextOf(ids, kEnd).substr(before.size());
  request.mutable_stop()->add_stop_strings(stop);
  const v1::Sample quiet = Quiet(request, [&](size_t tokens, const std::string& text) {
                             // What may become the stop string is held back.
                             if (tokens > kBegin) {
                               EXPECT_EQ(text, before);
                             }
                           }).sample;
  EXPECT_EQ(quiet.matched_stop().string(), stop);
  EXPECT_EQ(quiet.text(), before);
  std::set<int64_t> inside;
  for (size_t i = kBegin + 1; i + 1 < TokenCount(quiet); ++i) inside.insert(i);
  for (const int64_t wanted : {kBegin + 2, kBegin + 8, kBegin + 14, kBegin + 20}) {
    KillAt(request, quiet, wanted, inside);
  }
}

TEST_F(KillPointsTest, InsideACharacter) {
  const v1::GenerateRequest request = Request("Say it with emoji:", 200);
  const v1::Sample quiet = Quiet(request).sample;
  const std::vector<uint32_t> ids = client::ReadIds(quiet.token_ids());
  std::set<int64_t> inside;
  v1::DetokenizeRequest prefix;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto text = cluster_->client().Detokenize(prefix);
    ASSERT_TRUE(text.ok()) << text.status();
    if (!text->text_tail_bytes().empty()) inside.insert(i);
    prefix.add_ids(ids[i]);
  }
  ASSERT_GE(inside.size(), 20u);
  for (int point = 0; point < 4; ++point) {
    auto wanted = inside.begin();
    std::advance(wanted, random_() % inside.size());
    KillAt(request, quiet, *wanted, inside);
  }
}

// At the very last token the worker is often done before the kill arrives, so the three before it
// count as well.
TEST_F(KillPointsTest, AmongTheLastTokens) {
  for (const char* prompt : {"Tell me a story:", "Count to 30:"}) {
    const v1::GenerateRequest request = Request(prompt, 80);
    const v1::Sample quiet = Quiet(request).sample;
    KillAt(request, quiet, 78, {76, 77, 78, 79});
  }
}

TEST_F(KillPointsTest, AtSeededPositionsUnderEveryKindOfParameter) {
  for (const char* prompt :
       {"Tell me a story:", "Say it with emoji:", "12+34*2=", "Count to 30:", "Greet Ada:"}) {
    v1::GenerateRequest request = Request(prompt, 300);
    request.mutable_sampling()->set_temperature(1.3f);
    request.mutable_sampling()->set_top_p(0.95f);
    request.mutable_sampling()->set_repetition_penalty(1.1f);
    request.mutable_sampling()->set_frequency_penalty(0.2f);
    request.mutable_stop()->set_min_new_tokens(200);
    request.mutable_logprobs()->set_top_count(3);
    request.mutable_logprobs()->add_chosen_ids(7);
    request.mutable_logprobs()->set_entropy(true);
    request.mutable_logprobs()->set_prompt_from(1);
    const v1::Sample quiet = Quiet(request).sample;
    const int64_t wanted = 5 + random_() % 250;
    std::set<int64_t> hits;
    for (int64_t i = wanted; i < wanted + 40; ++i) hits.insert(i);
    KillAt(request, quiet, wanted, hits);
  }
}

}  // namespace
}  // namespace lockstep::testing
