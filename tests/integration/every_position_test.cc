// A worker dies after every single token of an answer. Goal: whatever position an answer is moved
// at, and whatever was asked for, it equals the undisturbed one in every field.
//
// Method: a worker's device works until each sample has a token from it, then it hangs until the
// test takes the worker away, as a kill would. All samples go on with the other worker, whose cache
// is as cold as that of a process just started, and which dies a token later. So an answer of 200
// tokens moves about 200 times. What each device drew first says at which positions that was. A
// sample gets two tokens from a device when another one waits for the blocks that it computes; what
// was passed over so is done in another round, in which nobody shares blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "services/client/sample_bits.h"
#include "tests/faults/altering_executor.h"
#include "tests/support/cluster_harness.h"
#include "tests/support/rollout_calls.h"

namespace lockstep {
namespace {

using testing::Bits;
using testing::ClusterHarness;
using testing::GenerateCalls;
using testing::GenerateQuietly;

constexpr int64_t kTokens = 200;
constexpr absl::Duration kPatience = absl::Seconds(30);

// How long devices live, and at which positions samples came to them. Thread-safe.
class Lives {
 public:
  // The device of the n-th worker that was started, from 0.
  int Begin() {
    base::MutexLock lock(&mutex_);
    lives_.emplace_back();
    return static_cast<int>(lives_.size()) - 1;
  }
  // From now on lives are short, and devices that work already have had theirs. `ends` has the
  // absolute position of the last token of each sample, by sub-seed.
  void MakeShort(const std::map<uint64_t, int64_t>& ends) {
    base::MutexLock lock(&mutex_);
    left_ = ends;
    drawn_ = 0;
    for (Life& life : lives_) life.spent = true;
  }
  void End(int life) {
    base::MutexLock lock(&mutex_);
    lives_[life].over = true;
    changed_.NotifyAll();
  }

  // Before a step. Hangs when the life is spent; false once it is over.
  bool Enter(int life) {
    base::MutexLock lock(&mutex_);
    while (lives_[life].spent && !lives_[life].over) changed_.Wait(&mutex_);
    return !lives_[life].over;
  }
  void Ran(int life, std::span<const worker::StepSequence> sequences) {
    base::MutexLock lock(&mutex_);
    std::set<uint64_t>& served = lives_[life].served;
    for (const worker::StepSequence& sequence : sequences) {
      const auto found = left_.find(sequence.sampling.sub_seed);
      if (!sequence.sample || found == left_.end()) continue;
      ++drawn_;
      const int64_t position = sequence.sampling.position;
      if (served.insert(found->first).second) positions_[found->first].insert(position);
      if (position == found->second) left_.erase(found);
    }
    lives_[life].spent = !served.empty() && std::all_of(left_.begin(), left_.end(), [&](auto& e) {
      return served.contains(e.first);
    });
  }

  bool spent(int life) const {
    base::MutexLock lock(&mutex_);
    return lives_[life].spent;
  }
  int count() const {
    base::MutexLock lock(&mutex_);
    return static_cast<int>(lives_.size());
  }
  // Samples that have not drawn their last token.
  double left_count() const {
    base::MutexLock lock(&mutex_);
    return static_cast<double>(left_.size());
  }
  // Tokens drawn since lives are short.
  double drawn() const {
    base::MutexLock lock(&mutex_);
    return drawn_;
  }
  // A device has drawn the token at this position as its first one of the sample.
  bool moved_at(uint64_t sub_seed, int64_t position) const {
    base::MutexLock lock(&mutex_);
    const auto found = positions_.find(sub_seed);
    return found != positions_.end() && found->second.contains(position);
  }

 private:
  struct Life {
    bool spent = false;
    bool over = false;
    std::set<uint64_t> served;  // Samples that have a token from it.
  };
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<Life> lives_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, int64_t> left_ ABSL_GUARDED_BY(mutex_);  // Samples without their last token.
  double drawn_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::set<int64_t>> positions_ ABSL_GUARDED_BY(mutex_);
};

class MortalExecutor final : public faults::AlteringExecutor {
 public:
  MortalExecutor(std::unique_ptr<worker::StepExecutor> inner, Lives* lives)
      : AlteringExecutor(std::move(inner)), lives_(lives), life_(lives->Begin()) {}

  absl::Status Launch(std::span<const worker::StepSequence> sequences) override {
    if (!lives_->Enter(life_)) return absl::UnavailableError("the device is gone");
    const absl::Status status = AlteringExecutor::Launch(sequences);
    lives_->Ran(life_, sequences);
    return status;
  }

 private:
  Lives* const lives_;
  const int life_;
};

v1::GenerateRequest Request(const std::string& prompt, uint64_t seed) {
  v1::GenerateRequest request;
  request.set_prompt_text(prompt);
  request.set_seed(seed);
  request.mutable_stop()->set_max_new_tokens(kTokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

v1::GenerateRequest WithEveryKindOfLogprob() {
  v1::GenerateRequest request = Request("Tell me a story:", 31);
  request.mutable_sampling()->set_temperature(0.7f);
  request.mutable_sampling()->set_top_p(0.9f);
  request.mutable_logprobs()->set_top_count(5);
  request.mutable_logprobs()->add_chosen_ids(3);
  request.mutable_logprobs()->add_chosen_ids(499);
  request.mutable_logprobs()->set_entropy(true);
  return request;
}

v1::GenerateRequest WithAScoredPrompt() {
  v1::GenerateRequest request = Request("Greet Ada:", 32);
  request.mutable_sampling()->set_repetition_penalty(1.2f);
  request.mutable_sampling()->set_frequency_penalty(0.3f);
  request.mutable_logprobs()->set_top_count(2);
  request.mutable_logprobs()->set_prompt_from(1);
  request.mutable_logprobs()->set_prompt_details(true);
  return request;
}

v1::GenerateRequest WithFourSamples() {
  v1::GenerateRequest request = Request("Count to 30:", 33);
  request.set_n(4);
  return request;
}

// Ends with the first ";" that may end it, five tokens before the limit at the earliest.
v1::GenerateRequest WithAnEarliestStop() {
  v1::GenerateRequest request = Request("12+34*2=", 34);
  request.mutable_stop()->set_min_new_tokens(kTokens - 5);
  request.mutable_stop()->add_stop_strings(";");
  request.mutable_stop()->add_stop_strings(" ");
  return request;
}

// The first place from `begin` on where no character is cut.
size_t Boundary(const std::string& text, size_t begin) {
  while (begin < text.size() && (text[begin] & 0xC0) == 0x80) ++begin;
  return begin;
}

// Ends with its last token, by a stop string over several of them, after others that nearly matched
// on the way.
v1::GenerateRequest WithStopStringsOverTokens(ClusterHarness* cluster) {
  v1::GenerateRequest request = Request("Tell me a story:", 35);
  const auto unstopped = GenerateQuietly(cluster->stub(), {request})[0];
  EXPECT_TRUE(unstopped.ok()) << unstopped.status();
  const std::string& text = unstopped->samples(0).text();
  size_t begin = Boundary(text, text.size() - 8);
  while (text.find(text.substr(begin)) != begin) {
    do --begin;
    while (Boundary(text, begin) != begin);
  }
  request.mutable_stop()->add_stop_strings(text.substr(begin));
  for (int i = 0; i < 4; ++i) {
    const size_t near = Boundary(text, i * text.size() / 5);
    request.mutable_stop()->add_stop_strings(
        absl::StrCat(text.substr(near, Boundary(text, near + 10) - near), "~"));
  }
  return request;
}

int64_t IdCount(const std::string& ids) { return static_cast<int64_t>(ids.size() / 4); }

// A request with its undisturbed answer.
struct Case {
  v1::GenerateRequest request;
  v1::GenerateResponse quiet;
  int64_t prompt_tokens() const { return IdCount(quiet.prompt_ids()); }
};

class EveryPositionTest : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 2;

  void SetUp() override {
    const absl::Status status = cluster_.Start();
    ASSERT_TRUE(status.ok()) << status;
  }

  static bool WaitUntil(absl::FunctionRef<bool()> condition) {
    return ClusterHarness::WaitUntil(condition, kPatience);
  }
  double GatewayTokens() {
    return cluster_.GatewayMetric("lockstep_gateway_generated_tokens_total");
  }
  double Resumptions() { return cluster_.RouterMetric("lockstep_router_resumptions_total"); }
  double Routed() { return cluster_.RouterMetric("lockstep_router_routed_total"); }

  void StartWorker(int index) {
    constexpr char kRegistrations[] = "lockstep_scheduler_registrations_total";
    const double before = cluster_.SchedulerMetric(kRegistrations);
    life_of_[index] = lives_.count();
    const absl::Status status = cluster_.StartWorker(index);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(WaitUntil([&] { return cluster_.SchedulerMetric(kRegistrations) > before; }));
  }

  // Takes workers away in turn, each once all that it drew has come out, until all calls ended.
  void KillUntilDone(const GenerateCalls& calls, size_t call_count, double tokens_before) {
    const auto done = [&] { return calls.finished_count() == call_count; };
    for (int victim = 0;; victim = 1 - victim) {
      const int life = life_of_[victim];
      ASSERT_TRUE(WaitUntil([&] {
        return done() || (lives_.spent(life) && GatewayTokens() == tokens_before + lives_.drawn());
      })) << "after "
          << kills_ << " kills";
      if (done()) return;
      const double routed = Routed() + lives_.left_count();
      lives_.End(life);
      cluster_.StopWorker(victim);
      ++kills_;
      // All have to choose the other worker before this one can be chosen again.
      ASSERT_TRUE(WaitUntil([&] { return done() || Routed() >= routed; }));
      ASSERT_NO_FATAL_FAILURE(StartWorker(victim));
    }
  }

  void RunRound(const std::vector<Case>& cases) {
    std::map<uint64_t, int64_t> ends;
    for (const Case& c : cases) {
      for (const v1::Sample& sample : c.quiet.samples()) {
        ends[sample.sub_seed()] = c.prompt_tokens() + IdCount(sample.token_ids()) - 1;
      }
    }
    // The first worker gets all samples, and dies before it draws anything.
    cluster_.worker(1)->Drain(absl::Now() + kPatience);
    cluster_.StopWorker(1);
    ASSERT_TRUE(WaitUntil([&] { return cluster_.RouterMetric("lockstep_router_workers") == 1; }));
    lives_.MakeShort(ends);
    const double tokens_before = GatewayTokens();
    GenerateCalls calls(cluster_.stub());
    for (const Case& c : cases) calls.Start(c.request);
    ASSERT_TRUE(WaitUntil([&] {
      return cluster_.SchedulerMetric("lockstep_scheduler_running_sequences") ==
             static_cast<double>(ends.size());
    }));
    ASSERT_NO_FATAL_FAILURE(StartWorker(1));
    ASSERT_NO_FATAL_FAILURE(KillUntilDone(calls, cases.size(), tokens_before));
    const auto answers = calls.Wait();
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(cases[i].request.ShortDebugString());
      ASSERT_TRUE(answers[i].ok()) << answers[i].status();
      CheckAnswer(cases[i], *answers[i]);
    }
  }

  static void CheckAnswer(const Case& c, const v1::GenerateResponse& answer) {
    ASSERT_EQ(answer.samples_size(), c.quiet.samples_size());
    EXPECT_EQ(answer.prompt_ids(), c.quiet.prompt_ids());
    for (int i = 0; i < answer.samples_size(); ++i) {
      const v1::Sample& sample = answer.samples(i);
      EXPECT_TRUE(Bits(sample) == Bits(c.quiet.samples(i)))
          << i << ": " << client::FirstDifference(c.quiet.samples(i), sample).value_or("");
      EXPECT_GE(sample.usage().resumptions(), 1);
      EXPECT_EQ(sample.usage().cached_tokens(), 0);
      EXPECT_EQ(sample.usage().generated_tokens(), c.quiet.samples(i).usage().generated_tokens());
    }
  }

  // Output positions of all samples at which no device took over.
  int64_t PositionsLeft(const Case& c) const {
    int64_t left = 0;
    for (const v1::Sample& sample : c.quiet.samples()) {
      for (int64_t k = 0; k < IdCount(sample.token_ids()); ++k) {
        left += lives_.moved_at(sample.sub_seed(), c.prompt_tokens() + k) ? 0 : 1;
      }
    }
    return left;
  }

  Lives lives_;
  // A step takes every prefill whole, so that no sample falls behind.
  ClusterHarness cluster_{
      {.model = "deploy/demo-model",
       .workers = kWorkers,
       .chunk_tokens = 4096,
       .lease_seconds = 20,
       .worker_hooks = {.wrap_executor = faults::WrapExecutorIn<MortalExecutor>(&lives_)}}};
  int life_of_[kWorkers] = {0, 1};
  int kills_ = 0;
};

TEST_F(EveryPositionTest, AnswersThatMoveAfterEachTokenEqualQuietOnesInEveryField) {
  constexpr int kRoundsMax = 4;
  std::vector<Case> cases;
  for (const v1::GenerateRequest& request :
       {Request("Say it with emoji:", 30), WithEveryKindOfLogprob(), WithAScoredPrompt(),
        WithFourSamples(), WithAnEarliestStop(), WithStopStringsOverTokens(&cluster_)}) {
    const auto quiet = GenerateQuietly(cluster_.stub(), {request})[0];
    ASSERT_TRUE(quiet.ok()) << quiet.status();
    for (const v1::Sample& sample : quiet->samples()) {
      ASSERT_GE(IdCount(sample.token_ids()), kTokens - 5) << request.ShortDebugString();
    }
    cases.push_back({request, *quiet});
  }
  int rounds = 0;
  for (; !cases.empty() && rounds < kRoundsMax; ++rounds) {
    ASSERT_NO_FATAL_FAILURE(RunRound(cases));
    std::erase_if(cases, [&](const Case& c) { return PositionsLeft(c) == 0; });
    for (Case& c : cases) c.request.set_disable_prefix_cache(true);
  }
  std::printf("%d kills in %d rounds, %.0f resumptions\n", kills_, rounds, Resumptions());
  for (const Case& c : cases) {
    EXPECT_EQ(PositionsLeft(c), 0) << c.request.ShortDebugString();
  }
  EXPECT_EQ(cluster_.RouterMetric("lockstep_router_bit_mismatches_total"), 0);
  EXPECT_EQ(cluster_.GatewayMetric("lockstep_gateway_bit_mismatches_total"), 0);
}

}  // namespace
}  // namespace lockstep
