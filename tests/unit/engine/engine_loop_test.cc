// Goal: the loop is safe to call from many threads and loses nothing. Runs under the thread
// sanitizer (label core).

#include "services/worker/engine/engine_loop.h"

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine/engine_harness.h"

namespace lockstep::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Far away: what waits until then would hang.
absl::Time InTime() { return absl::Now() + absl::Minutes(1); }

// An engine loop on real time; collects ends and ids, and waits for them.
class LoopHarness {
 public:
  explicit LoopHarness(int64_t waiting_max = 100000, int64_t fails_at_step = -1)
      : metrics_(&registry_),
        executor_({.block_count = 64, .block_tokens = 16, .fails_at_step = fails_at_step}) {
    auto loop =
        EngineLoop::Create({.split_kv_size = 32,
                            .chunk_tokens = 64,
                            .sequences_max = 32,
                            .context_tokens_max = 1024,
                            .waiting_max = waiting_max,
                            .vocabulary = 64,
                            .weight_version = base::WeightVersion(1)},
                           {.executor = &executor_,
                            .tokenizer = LetterTokenizer(),
                            .clock = &clock_,
                            .metrics = &metrics_,
                            .on_step = [this](StepOutput output) { Collect(std::move(output)); },
                            .on_failure = [this](const absl::Status& status) { Fail(status); }});
    LOCKSTEP_CHECK(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  EngineLoop& loop() { return *loop_; }
  EngineMetrics& metrics() { return metrics_; }

  absl::Status Start(const SequenceStart& start) { return loop_->Start({start}).front(); }
  Transcript WaitForEnd(uint64_t ticket) {
    base::MutexLock lock(&mutex_);
    Transcript& transcript = transcripts_[base::TicketId(ticket)];
    while (!transcript.end.has_value() && !transcript.handed_off) changed_.Wait(&mutex_);
    return transcript;
  }
  void WaitForTokens(uint64_t ticket, size_t count) {
    base::MutexLock lock(&mutex_);
    Transcript& transcript = transcripts_[base::TicketId(ticket)];
    while (transcript.ids.size() < count) changed_.Wait(&mutex_);
  }
  // The loop's thread stands still from the next results on, as in a device that hangs.
  void Hang(bool hangs) {
    base::MutexLock lock(&mutex_);
    hangs_ = hangs;
    changed_.NotifyAll();
  }
  void WaitForHang() {
    base::MutexLock lock(&mutex_);
    while (!hanging_) changed_.Wait(&mutex_);
  }
  absl::Status WaitForFailure() {
    base::MutexLock lock(&mutex_);
    while (failure_.ok()) changed_.Wait(&mutex_);
    return failure_;
  }

 private:
  void Collect(StepOutput output) {
    base::MutexLock lock(&mutex_);
    for (SequenceOutput& one : output.outputs) {
      Transcript& all = transcripts_[one.ticket];
      all.ids.insert(all.ids.end(), one.ids.begin(), one.ids.end());
      EXPECT_FALSE(all.end.has_value()) << "two ends";
      all.end = std::move(one.end);
    }
    for (const base::TicketId ticket : output.hand_offs) transcripts_[ticket].handed_off = true;
    hanging_ = hangs_;
    changed_.NotifyAll();
    while (hangs_) changed_.Wait(&mutex_);
  }
  void Fail(const absl::Status& status) {
    base::MutexLock lock(&mutex_);
    failure_ = status;
    changed_.NotifyAll();
  }

  base::RealClock clock_;
  metrics::Registry registry_;
  EngineMetrics metrics_;
  HashExecutor executor_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::map<base::TicketId, Transcript> transcripts_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  bool hanging_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<EngineLoop> loop_;  // Last, so that it ends first.
};

TEST(EngineLoopTest, GivesWhatALoneRunGives) {
  LoopHarness harness;
  const SequenceStart start = MakeStart(1, RandomIds(1, 50), 40);
  ASSERT_TRUE(harness.Start(start).ok());
  EXPECT_EQ(harness.WaitForEnd(1).ids, RunAlone(start).ids);
}

TEST(EngineLoopTest, GivesOneStatusForEachStart) {
  LoopHarness harness;
  const auto statuses = harness.loop().Start(
      {MakeStart(1, {1}, 3), MakeStart(2, {64}, 3), MakeStart(1, {1}, 3), MakeStart(3, {}, 3)});
  ASSERT_THAT(statuses, SizeIs(4));
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(statuses[2].code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(statuses[3].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(harness.metrics().sequences_refused.value(), 3);
  harness.WaitForEnd(1);
}

TEST(EngineLoopTest, AnIdleLoopWakesForADeadline) {
  LoopHarness harness;
  SequenceStart start = MakeStart(1, RandomIds(1, 10), 40);
  start.credit_tokens = 2;
  start.deadline = absl::Now() + absl::Milliseconds(50);
  ASSERT_TRUE(harness.Start(start).ok());
  const Transcript out = harness.WaitForEnd(1);
  EXPECT_EQ(out.end->reason, EndReason::kAbort);
  EXPECT_THAT(out.ids, SizeIs(2));
}

TEST(EngineLoopTest, ControlCallsReturnWhenTheyAreDone) {
  LoopHarness harness;
  SequenceStart start = MakeStart(1, RandomIds(1, 40), 500);
  start.credit_tokens = 20;
  ASSERT_TRUE(harness.Start(start).ok());
  harness.WaitForTokens(1, 20);
  EXPECT_THAT(harness.loop().Snapshot().held, SizeIs(1));
  const auto aborted =
      harness.loop().AbortRequests({base::RequestId("r"), base::RequestId("s")}, InTime());
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_EQ(aborted->sequences, 1);
  EXPECT_THAT(aborted->known, ElementsAre(base::RequestId("r")));
  EXPECT_THAT(harness.loop().Snapshot().held, IsEmpty());
  EXPECT_EQ(harness.loop().Snapshot().kv_blocks_free, 64);
  EXPECT_GT(harness.loop().FlushCache(std::nullopt, InTime()).value_or(0), 0);
  EXPECT_EQ(harness.loop().FlushCache(std::nullopt, InTime()).value_or(-1), 0);
  EXPECT_EQ(harness.WaitForEnd(1).end->reason, EndReason::kAbort);
}

TEST(EngineLoopTest, HandOffGivesBackWhatRunsAndWhatHasJustCome) {
  LoopHarness harness;
  ASSERT_TRUE(harness.Start(MakeStart(1, RandomIds(1, 40), 900)).ok());
  ASSERT_TRUE(harness.Start(MakeStart(2, RandomIds(2, 40), 900)).ok());
  EXPECT_TRUE(harness.loop().HandOffAll(InTime()).ok());
  EXPECT_TRUE(harness.WaitForEnd(1).handed_off);
  EXPECT_TRUE(harness.WaitForEnd(2).handed_off);
  EXPECT_EQ(harness.Start(MakeStart(3, {1}, 1)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(EngineLoopTest, ALostDeviceIsToldOnce) {
  LoopHarness harness(/*waiting_max=*/10, /*fails_at_step=*/2);
  ASSERT_TRUE(harness.Start(MakeStart(1, RandomIds(1, 10), 100)).ok());
  EXPECT_EQ(harness.WaitForFailure().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(harness.loop().SetHold(true, InTime()).ok());  // Commands are still taken.
  EXPECT_EQ(harness.loop().health().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness.Start(MakeStart(2, {1}, 1)).code(), absl::StatusCode::kUnavailable);
}

TEST(EngineLoopTest, NothingWaitsForAHungStepBeyondItsDeadline) {
  LoopHarness harness;
  harness.Hang(true);
  ASSERT_TRUE(harness.Start(MakeStart(1, RandomIds(1, 10), 500)).ok());
  harness.WaitForHang();
  const absl::Time soon = absl::Now() + absl::Milliseconds(20);
  const auto late = absl::StatusCode::kDeadlineExceeded;
  EXPECT_EQ(harness.loop().AwaitStepEnd(soon).code(), late);
  EXPECT_EQ(harness.loop().SetHold(true, soon).code(), late);
  EXPECT_EQ(harness.loop().AbortRequests({base::RequestId("r")}, soon).status().code(), late);
  EXPECT_EQ(harness.loop().AbortOlderThan(base::Epoch(99), soon).status().code(), late);
  EXPECT_EQ(harness.loop().FlushCache(std::nullopt, soon).status().code(), late);
  harness.Hang(false);
  // None of it is done later either.
  EXPECT_THAT(harness.WaitForEnd(1).ids, SizeIs(500));
}

TEST(EngineLoopTest, AbortOfAllDoesNotWaitForAHungStepAndTellsWhenItIsDone) {
  LoopHarness harness;
  harness.Hang(true);
  ASSERT_TRUE(harness.Start(MakeStart(1, RandomIds(1, 10), 500)).ok());
  ASSERT_TRUE(harness.Start(MakeStart(2, RandomIds(2, 10), 500)).ok());
  harness.WaitForHang();
  harness.loop().AbortAll();
  EXPECT_TRUE(harness.loop().Snapshot().ending);
  EXPECT_FALSE(harness.loop().Snapshot().idle);
  harness.Hang(false);
  EXPECT_EQ(harness.WaitForEnd(1).end->reason, EndReason::kAbort);
  EXPECT_EQ(harness.WaitForEnd(2).end->reason, EndReason::kAbort);
  EXPECT_TRUE(harness.loop().AwaitStepEnd(InTime()).ok());
  EXPECT_FALSE(harness.loop().Snapshot().ending);
  EXPECT_THAT(harness.loop().Snapshot().held, IsEmpty());
}

TEST(EngineLoopTest, AFullEngineRefuses) {
  LoopHarness harness(/*waiting_max=*/3);
  EXPECT_TRUE(harness.loop().SetHold(true, InTime()).ok());
  int64_t refused = 0;
  for (uint64_t ticket = 1; ticket <= 5; ++ticket) {
    const absl::Status status = harness.Start(MakeStart(ticket, {1}, 1));
    if (status.code() == absl::StatusCode::kResourceExhausted) ++refused;
  }
  EXPECT_EQ(refused, 2);
}

// Threads start, cancel, grant, abort and look at the same time; every sequence ends once.
TEST(EngineLoopTest, ManyThreadsLoseNothing) {
  LoopHarness harness;
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 60;
  std::vector<std::thread> threads;
  std::atomic<bool> done = false;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&harness, thread] {
      for (uint64_t i = 1; i <= kEach; ++i) {
        const uint64_t ticket = thread * kEach + i;
        SequenceStart start = MakeStart(ticket, RandomIds(ticket % 5, 5 + ticket % 60), 20);
        start.credit_tokens = 3;
        start.request = base::RequestId(std::to_string(ticket % 7));
        EXPECT_TRUE(harness.Start(start).ok());
        harness.loop().AddCredit(start.ticket, 5);
        if (i % 5 == 0) harness.loop().Cancel(start.ticket);
        harness.loop().AddCredit(start.ticket, 100);
      }
    });
  }
  threads.emplace_back([&harness, &done] {
    while (!done) {
      EXPECT_TRUE(harness.loop().AbortRequests({base::RequestId("3")}, InTime()).ok());
      EXPECT_TRUE(harness.loop().SetHold(true, InTime()).ok());
      EXPECT_TRUE(harness.loop().FlushCache(std::nullopt, InTime()).ok());
      EXPECT_TRUE(harness.loop().SetHold(false, InTime()).ok());
      EXPECT_LE(harness.loop().Snapshot().held.size(), kThreads * kEach);
      EXPECT_TRUE(harness.loop().health().ok());
    }
  });
  for (uint64_t ticket = 1; ticket <= kThreads * kEach; ++ticket) harness.WaitForEnd(ticket);
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(harness.loop().Snapshot().held, IsEmpty());
  EXPECT_EQ(harness.loop().Snapshot().kv_blocks_free, 64);
}

}  // namespace
}  // namespace lockstep::worker
