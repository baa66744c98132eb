#include "common/rpc/handler.h"

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/retry_advice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_fixture.h"

namespace lockstep::rpc {
namespace {

using HandlerTest = EchoFixture;

TEST_F(HandlerTest, UnaryAnswersWithWhatItWasGiven) {
  service_.unary.start = [](UnaryEcho& handler) {
    EchoMessage answer = handler.request();
    answer.set_text("answer");
    handler.Respond(std::move(answer));
  };
  const absl::StatusOr<EchoMessage> answer = Call(MakeEcho(7));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->index(), 7);
  EXPECT_EQ(answer->text(), "answer");
}

TEST_F(HandlerTest, UnaryErrorKeepsCodeMessageAndAdvice) {
  const base::RetryAdvice advice = {.retryable = true, .delay = absl::Milliseconds(250)};
  service_.unary.start = [&](UnaryEcho& handler) {
    handler.Respond(base::WithRetryAdvice(absl::ResourceExhaustedError("queue full: 3"), advice));
  };
  const absl::Status status = Call({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue full: 3");
  EXPECT_EQ(base::GetRetryAdvice(status), advice);
}

TEST_F(HandlerTest, FirstOfSeveralEndingsWins) {
  service_.unary.start = [](UnaryEcho& handler) {
    handler.Respond(MakeEcho(1));
    handler.Respond(MakeEcho(2));
    handler.Finish(absl::InternalError("too late"));
    handler.Abort(absl::InternalError("too late"));
  };
  const absl::StatusOr<EchoMessage> answer = Call({});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->index(), 1);
  EXPECT_TRUE(service_.tally.closed.WaitFor(1));
}

TEST_F(HandlerTest, PassedDeadlineCancelsTheHandlerAndALateAnswerIsHarmless) {
  std::shared_ptr<UnaryEcho> late;
  service_.unary.start = [&](UnaryEcho& handler) { late = SharedFrom(&handler); };
  const absl::Time deadline = absl::Now() + absl::Milliseconds(50);
  EXPECT_EQ(Call({}, {.deadline = deadline}).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(service_.tally.cancelled.WaitFor(1));
  EXPECT_TRUE(service_.tally.closed.WaitFor(1));
  late->Respond(MakeEcho(1));
  late->Abort(absl::InternalError("late"));
  late.reset();
  EXPECT_TRUE(service_.tally.alive.WaitFor(0));
  EXPECT_EQ(service_.tally.closed.value(), 1);
  EXPECT_EQ(service_.tally.cancelled.value(), 1);
}

TEST_F(HandlerTest, ScopeCarriesDeadlineAndTraceId) {
  CallScope seen;
  service_.unary.start = [&](UnaryEcho& handler) {
    seen = handler.scope();
    handler.Respond(EchoMessage());
  };
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  ASSERT_TRUE(Call({}, {.deadline = deadline, .trace_id = "run-1/step-2"}).ok());
  EXPECT_EQ(seen.trace_id, "run-1/step-2");
  // Deadlines travel as the time left, so the hop's own time is added.
  EXPECT_GT(seen.deadline, deadline - absl::Seconds(5));
  EXPECT_LT(seen.deadline, deadline + absl::Seconds(5));
  ASSERT_TRUE(Call({}).ok());
  EXPECT_EQ(seen.deadline, absl::InfiniteFuture());
  EXPECT_EQ(seen.trace_id, "");
}

TEST_F(HandlerTest, AcceptedMessagesAreAllWrittenBeforeTheStatus) {
  service_.server_stream.start = [](ServerStreamEcho& handler) {
    for (int i = 0; i < 60; ++i) EXPECT_EQ(handler.Write(MakeEcho(i)), WriteResult::kAccepted);
    handler.Finish(absl::DataLossError("at the end"));
    EXPECT_EQ(handler.Write(MakeEcho(60)), WriteResult::kClosed);
  };
  std::vector<int> indices;
  absl::Status end;
  const ClientScript<ReadClient> script = {
      .message =
          [&](ReadClient& stream, EchoMessage& message) {
            indices.push_back(static_cast<int>(message.index()));
            stream.RequestRead();
          },
      .closed = [&](ReadClient&, const absl::Status& status) { end = status; }};
  OpenServerStream(script)->RequestRead();
  ASSERT_TRUE(client_.closed.WaitFor(1));
  std::vector<int> expected(60);
  for (int i = 0; i < 60; ++i) expected[i] = i;
  EXPECT_EQ(indices, expected);
  EXPECT_EQ(end.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(service_.tally.written.WaitFor(60));
}

// A reader that stops: the handler is refused once the outbox and the transport's window are full,
// is told when there is room again, and no message is lost, doubled or reordered.
TEST_F(HandlerTest, SlowReaderIsMetByABoundedOutbox) {
  constexpr int kMessages = 400;
  constexpr size_t kBytes = 64 << 10;
  std::atomic<int> next = 0;
  const auto fill = [&](ServerStreamEcho& handler) {
    while (next < kMessages) {
      EchoMessage message = MakeEcho(next, kBytes);
      if (handler.Write(std::move(message)) != WriteResult::kAccepted) {
        EXPECT_EQ(message.padding().size(), kBytes) << "a refused message is left untouched";
        return;
      }
      ++next;
    }
    handler.Finish(absl::OkStatus());
  };
  service_.server_stream.limits = {.messages_max = 8, .bytes_max = 1 << 20};
  service_.server_stream.start = fill;
  service_.server_stream.drained = fill;
  int expected = 0;
  const ClientScript<ReadClient> script = {
      .message = [&](ReadClient& stream, EchoMessage& message) {
        EXPECT_EQ(message.index(), expected++);
        stream.RequestRead();
      }};
  const std::shared_ptr<ReadClient> stream = OpenServerStream(script);
  ASSERT_TRUE(service_.tally.started.WaitFor(1));
  // Windows are at most a few MiB; what was accepted is far from all.
  EXPECT_LT(next, kMessages / 2);
  stream->RequestRead();
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(expected, kMessages);
  EXPECT_GE(service_.tally.drained.value(), 1);
}

TEST_F(HandlerTest, ReadsHappenOnlyOnRequest) {
  std::shared_ptr<BidiEcho> handler;
  service_.bidi.start = [&](BidiEcho& started) { handler = SharedFrom(&started); };
  const ClientScript<BidiClient> script;
  const std::shared_ptr<BidiClient> stream = OpenBidi(script);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(stream->Write(MakeEcho(i)), WriteResult::kAccepted);
  ASSERT_TRUE(service_.tally.started.WaitFor(1));
  EXPECT_EQ(service_.tally.messages.value(), 0);
  for (int i = 1; i <= 3; ++i) {
    handler->RequestRead();
    ASSERT_TRUE(service_.tally.messages.WaitFor(i));
  }
  handler->Finish(absl::OkStatus());
  stream->RequestRead();
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(service_.tally.messages.value(), 3);
  EXPECT_EQ(service_.tally.half_closes.value(), 0);
  handler.reset();
}

TEST_F(HandlerTest, HalfCloseComesAfterAllMessagesAndTheAnswerFollows) {
  std::atomic<int> sum = 0;
  service_.client_stream.start = [](ClientStreamEcho& handler) { handler.RequestRead(); };
  service_.client_stream.message = [&](ClientStreamEcho& handler, EchoMessage& message) {
    sum += static_cast<int>(message.index());
    handler.RequestRead();
  };
  service_.client_stream.half_close = [&](ClientStreamEcho& handler) {
    handler.Respond(MakeEcho(sum));
  };
  grpc::ClientContext context;
  EchoMessage answer;
  const auto writer = stub_->ClientStream(&context, &answer);
  for (int i = 1; i <= 100; ++i) ASSERT_TRUE(writer->Write(MakeEcho(i)));
  writer->WritesDone();
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_EQ(answer.index(), 5050);
}

// A client that is lost in mid-stream must not look like one that has said everything.
TEST_F(HandlerTest, LostClientIsACancelAndNeverAHalfClose) {
  service_.client_stream.start = [](ClientStreamEcho& handler) { handler.RequestRead(); };
  service_.client_stream.message = [](ClientStreamEcho& handler, EchoMessage&) {
    handler.RequestRead();
  };
  constexpr int kClients = 100;
  for (int i = 0; i < kClients; ++i) {
    grpc::ClientContext context;
    EchoMessage answer;
    const auto writer = stub_->ClientStream(&context, &answer);
    writer->Write(MakeEcho(i));
    ASSERT_TRUE(service_.tally.messages.WaitFor(i + 1));
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_TRUE(service_.tally.closed.WaitFor(kClients));
  EXPECT_EQ(service_.tally.cancelled.value(), kClients);
  EXPECT_EQ(service_.tally.half_closes.value(), 0);
}

TEST_F(HandlerTest, AbortEndsAStreamThatNobodyReads) {
  service_.server_stream.limits = {.messages_max = 4};
  std::shared_ptr<ServerStreamEcho> handler;
  service_.server_stream.start = [&](ServerStreamEcho& started) {
    while (started.Write(MakeEcho(0, 1 << 20)) == WriteResult::kAccepted) {
    }
    handler = SharedFrom(&started);
  };
  const ClientScript<ReadClient> script;
  const std::shared_ptr<ReadClient> stream = OpenServerStream(script);
  ASSERT_TRUE(service_.tally.started.WaitFor(1));
  handler->Finish(absl::OkStatus());
  handler->Abort(absl::UnavailableError("idle for too long"));
  handler.reset();
  EXPECT_TRUE(service_.tally.closed.WaitFor(1));
  stream->Cancel();
  EXPECT_TRUE(client_.closed.WaitFor(1));
}

TEST_F(HandlerTest, DrainLetsRunningCallsEndAndCancelsTheRest) {
  std::shared_ptr<BidiEcho> first;
  service_.bidi.start = [&](BidiEcho& handler) {
    if (first == nullptr) first = SharedFrom(&handler);
  };
  std::atomic<int> ok_count = 0;
  const ClientScript<BidiClient> script = {
      .closed = [&](BidiClient&, const absl::Status& status) { ok_count += status.ok() ? 1 : 0; }};
  for (int i = 0; i < 2; ++i) {
    OpenBidi(script)->RequestRead();
    ASSERT_TRUE(service_.tally.started.WaitFor(i + 1));
  }
  service_.bidi.cancelled = [&](BidiEcho&) { EXPECT_NE(ok_count, 0); };
  std::jthread finisher([&] {
    first->Finish(absl::OkStatus());
    first.reset();
  });
  server_->Drain(absl::Now() + absl::Milliseconds(300));
  EXPECT_EQ(service_.tally.closed.value(), 2) << "a drained server has no handler left";
  EXPECT_EQ(service_.tally.cancelled.value(), 1);
  EXPECT_TRUE(client_.closed.WaitFor(2));
  EXPECT_EQ(ok_count, 1);
}

// A start that waits for its turn on another thread, and takes long there.
class LateStartTest : public EchoFixture {
 protected:
  LateStartTest() {
    service_.run_start = [this](absl::AnyInvocable<void()> start) {
      base::MutexLock lock(&mutex_);
      starts_.push_back(std::move(start));
      arrived_.Add(1);
    };
  }
  // The turn of the next one that has come.
  void RunStart(int number = 1) {
    ASSERT_TRUE(arrived_.WaitForAtLeast(number));
    absl::AnyInvocable<void()> start;
    {
      base::MutexLock lock(&mutex_);
      start = std::move(starts_.front());
      starts_.pop_front();
    }
    start();
  }

  WaitableCount arrived_;
  base::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> starts_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(LateStartTest, AnswersFromTheOtherThreadWithItsRequestAlive) {
  service_.unary.start = [](UnaryEcho& handler) {
    handler.Respond(MakeEcho(static_cast<int>(handler.request().index()) + 1));
    // The answer may have been sent meanwhile, but what gRPC owns is still there.
    EXPECT_EQ(handler.request().index(), 41);
    EXPECT_FALSE(handler.peer().empty());
  };
  std::jthread other([this] { RunStart(); });
  const absl::StatusOr<EchoMessage> answer = Call(MakeEcho(41));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->index(), 42);
}

TEST_F(LateStartTest, ClientThatHasGoneByThenSparesTheStart) {
  UnaryEcho::Scripted* handler = nullptr;
  service_.unary.made = [&](void* made) { handler = static_cast<UnaryEcho::Scripted*>(made); };
  const absl::Time deadline = absl::Now() + absl::Milliseconds(50);
  EXPECT_EQ(Call({}, {.deadline = deadline}).status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(arrived_.WaitFor(1));
  while (!handler->over()) std::this_thread::yield();
  EXPECT_EQ(service_.tally.closed.value(), 0) << "its request must outlive the start";
  RunStart();
  EXPECT_TRUE(service_.tally.closed.WaitFor(1));
  EXPECT_EQ(service_.tally.started.value(), 0);
  EXPECT_EQ(service_.tally.cancelled.value(), 0);
}

TEST_F(LateStartTest, CancelDuringTheStartIsToldAfterIt) {
  WaitableCount seen;
  service_.server_stream.start = [&](ServerStreamEcho& handler) {
    seen.Add(1);
    // Fills what a client that has gone does not take, until the handler knows.
    while (handler.Write(MakeEcho(0, 1 << 16)) != WriteResult::kClosed) {
    }
    EXPECT_EQ(service_.tally.cancelled.value(), 0);
    EXPECT_EQ(service_.tally.closed.value(), 0);
    EXPECT_EQ(handler.request().index(), 7);
  };
  const ClientScript<ReadClient> script;
  const std::shared_ptr<ReadClient> stream = OpenServerStream(script, MakeEcho(7));
  std::jthread other([this] { RunStart(); });
  ASSERT_TRUE(seen.WaitFor(1));
  stream->Cancel();
  EXPECT_TRUE(service_.tally.closed.WaitFor(1));
  EXPECT_EQ(service_.tally.cancelled.value(), 1);
  EXPECT_TRUE(client_.closed.WaitFor(1));
}

}  // namespace
}  // namespace lockstep::rpc
