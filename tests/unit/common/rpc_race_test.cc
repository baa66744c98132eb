#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/bounded_queue.h"
#include "common/base/philox.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_fixture.h"

// Goal: no order of results, cancels, deadlines and lost clients ends an RPC twice, never, or after
// its object is gone. Method: real calls over loopback in which several threads do all of these at
// once, many times, with seeded choices; sanitizers and the fixture's counts are the judges.
namespace lockstep::rpc {
namespace {

using RaceTest = EchoFixture;

uint32_t Draw(uint32_t round, uint32_t what) {
  return base::Philox4x32({round, what, 0, 0}, {17, 0})[0];
}

TEST_F(RaceTest, ThreeAnswersAndACancelEndAUnaryCallOnce) {
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    std::shared_ptr<UnaryEcho> handler;
    service_.unary.start = [&](UnaryEcho& started) { handler = SharedFrom(&started); };
    WaitableCount done;
    const CallHandle call = CallUnary(stub_->async(), &EchoAsync::Unary, MakeEcho(round), {},
                                      [&](absl::StatusOr<EchoMessage>) { done.Add(1); });
    ASSERT_TRUE(service_.tally.started.WaitFor(round + 1));
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&handler, t] {
          if (t == 2) return handler->Abort(absl::AbortedError("race"));
          handler->Respond(MakeEcho(t));
        });
      }
      threads.emplace_back([&call] { call.Cancel(); });
    }
    ASSERT_TRUE(done.WaitFor(1));
    ASSERT_TRUE(service_.tally.closed.WaitFor(round + 1));
    handler.reset();
    ASSERT_TRUE(service_.tally.alive.WaitFor(0));
  }
}

TEST_F(RaceTest, AnswersThatMeetTheirDeadlineEndEveryCallOnce) {
  constexpr int kCalls = 1000;
  base::BoundedQueue<std::shared_ptr<UnaryEcho>> waiting(kCalls);
  service_.unary.start = [&](UnaryEcho& handler) {
    EXPECT_TRUE(waiting.TryPush(SharedFrom(&handler)));
  };
  WaitableCount done;
  {
    std::vector<std::jthread> answerers;
    for (int t = 0; t < 2; ++t) {
      answerers.emplace_back([&waiting] {
        while (auto handler = waiting.Pop(absl::InfiniteDuration())) {
          (*handler)->Respond(MakeEcho(1));
        }
      });
    }
    for (int call = 0; call < kCalls; ++call) {
      const absl::Time deadline = absl::Now() + absl::Microseconds(Draw(call, 0) % 4000);
      CallUnary(stub_->async(), &EchoAsync::Unary, MakeEcho(call), {.deadline = deadline},
                [&](absl::StatusOr<EchoMessage>) { done.Add(1); });
    }
    EXPECT_TRUE(done.WaitFor(kCalls));
    // After this no call can still be on its way to a handler.
    server_->Shutdown();
    waiting.Close();
  }
  EXPECT_EQ(done.value(), kCalls);
  EXPECT_EQ(service_.tally.closed.value(), service_.tally.started.value());
}

// One stream on which two server threads and one client thread write, the server finishes or
// aborts, and the client cancels, closes or loses its whole channel.
TEST_F(RaceTest, BidiStreamsEndOnceOnBothSides) {
  constexpr int kRounds = 250;
  service_.bidi.limits = {.messages_max = 4};
  service_.bidi.message = [](BidiEcho& handler, EchoMessage&) { handler.RequestRead(); };
  service_.bidi.half_close = [](BidiEcho& handler) { handler.Finish(absl::OkStatus()); };
  const ClientScript<BidiClient> script = {
      .message = [](BidiClient& stream, EchoMessage&) { stream.RequestRead(); },
      .limits = {.messages_max = 4}};
  for (int round = 0; round < kRounds; ++round) {
    std::shared_ptr<BidiEcho> handler;
    service_.bidi.start = [&](BidiEcho& started) {
      handler = SharedFrom(&started);
      started.RequestRead();
    };
    std::shared_ptr<BidiClient> stream = OpenBidi(script);
    stream->RequestRead();
    ASSERT_TRUE(service_.tally.started.WaitFor(round + 1));
    const uint32_t client_writes = Draw(round, 1) % 30;
    const uint32_t server_writes = Draw(round, 2) % 30;
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] {
          for (uint32_t i = 0; i < server_writes; ++i) (void)handler->Write(MakeEcho(i, 2000));
          if (Draw(round, 3) % 3 == 0) handler->Finish(absl::OkStatus());
          if (Draw(round, 3) % 3 == 1) handler->Abort(absl::AbortedError("race"));
        });
      }
      threads.emplace_back([&] {
        for (uint32_t i = 0; i < client_writes; ++i) (void)stream->Write(MakeEcho(i, 2000));
        if (Draw(round, 4) % 3 == 0) stream->CloseWrites();
        if (Draw(round, 4) % 3 == 1) stream->Cancel();
      });
      if (Draw(round, 5) % 5 == 0) threads.emplace_back([&] { Connect(); });
    }
    stream->Cancel();
    ASSERT_TRUE(client_.closed.WaitFor(round + 1)) << "round " << round;
    ASSERT_TRUE(service_.tally.closed.WaitFor(round + 1)) << "round " << round;
    stream.reset();
    handler.reset();
    ASSERT_TRUE(client_.alive.WaitFor(0));
    ASSERT_TRUE(service_.tally.alive.WaitFor(0));
  }
  EXPECT_EQ(client_.closed.value(), kRounds);
  EXPECT_EQ(service_.tally.closed.value(), kRounds);
}

TEST_F(RaceTest, AThousandVanishingClientsLeaveNothingBehind) {
  constexpr int kClients = 1000;
  service_.server_stream.start = [](ServerStreamEcho& handler) {
    while (handler.Write(MakeEcho(0, 100)) == WriteResult::kAccepted) {
    }
  };
  service_.server_stream.drained = service_.server_stream.start;
  const ClientScript<ReadClient> script;
  std::vector<std::shared_ptr<ReadClient>> streams;
  for (int i = 0; i < kClients; ++i) {
    streams.push_back(OpenServerStream(script));
    streams.back()->RequestRead();
    if (streams.size() < 50) continue;
    ASSERT_TRUE(service_.tally.started.WaitFor(i + 1));
    for (const auto& stream : streams) stream->Cancel();
    streams.clear();
  }
  ASSERT_TRUE(client_.closed.WaitFor(kClients));
  EXPECT_TRUE(client_.alive.WaitFor(0));
  EXPECT_TRUE(service_.tally.alive.WaitFor(0));
  EXPECT_EQ(service_.tally.closed.value(), kClients);
  EXPECT_EQ(service_.tally.cancelled.value(), kClients);
}

}  // namespace
}  // namespace lockstep::rpc
