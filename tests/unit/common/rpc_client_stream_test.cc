#include "common/rpc/client_stream.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_fixture.h"

namespace lockstep::rpc {
namespace {

class ClientStreamTest : public EchoFixture {
 protected:
  // The server sends back what it gets, and ends when the client has said everything.
  void ServeEcho() {
    service_.bidi.start = [](BidiEcho& handler) { handler.RequestRead(); };
    service_.bidi.message = [](BidiEcho& handler, EchoMessage& message) {
      EXPECT_EQ(handler.Write(std::move(message)), WriteResult::kAccepted);
      handler.RequestRead();
    };
    service_.bidi.half_close = [](BidiEcho& handler) { handler.Finish(absl::OkStatus()); };
  }
  // Reads on and remembers the end.
  ClientScript<BidiClient> ReadAll() {
    return {.message = [](BidiClient& stream, EchoMessage&) { stream.RequestRead(); },
            .closed = [this](BidiClient&, const absl::Status& status) { end_ = status; }};
  }

  absl::Status end_;
};

TEST_F(ClientStreamTest, AcceptedMessagesArriveInOrderBeforeTheHalfClose) {
  ServeEcho();
  std::vector<int64_t> indices;
  ClientScript<BidiClient> script = ReadAll();
  script.message = [&](BidiClient& stream, EchoMessage& message) {
    indices.push_back(message.index());
    stream.RequestRead();
  };
  const auto stream = OpenBidi(script);
  stream->RequestRead();
  std::vector<int64_t> expected;
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(stream->Write(MakeEcho(i)), WriteResult::kAccepted);
    expected.push_back(i);
  }
  stream->CloseWrites();
  EXPECT_EQ(stream->Write(MakeEcho(60)), WriteResult::kClosed);
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_TRUE(end_.ok()) << end_;
  EXPECT_EQ(indices, expected);
}

TEST_F(ClientStreamTest, FullOutboxRefusesAndTellsWhenThereIsRoom) {
  std::shared_ptr<BidiEcho> handler;
  service_.bidi.start = [&](BidiEcho& started) { handler = SharedFrom(&started); };
  service_.bidi.message = [](BidiEcho& started, EchoMessage&) { started.RequestRead(); };
  service_.bidi.half_close = [](BidiEcho& started) { started.Finish(absl::OkStatus()); };
  constexpr int kMessages = 300;
  std::atomic<int> next = 0;
  ClientScript<BidiClient> script = ReadAll();
  script.limits = {.messages_max = 4};
  script.drained = [&](BidiClient& stream) {
    while (next < kMessages) {
      if (stream.Write(MakeEcho(next, 64 << 10)) != WriteResult::kAccepted) return;
      ++next;
    }
    stream.CloseWrites();
  };
  const auto stream = OpenBidi(script);
  stream->RequestRead();
  script.drained(*stream);
  EXPECT_LT(next, kMessages);
  ASSERT_TRUE(service_.tally.started.WaitFor(1));
  handler->RequestRead();
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_TRUE(end_.ok()) << end_;
  EXPECT_EQ(service_.tally.messages.value(), kMessages);
  EXPECT_GE(client_.drained.value(), 1);
  handler.reset();
}

TEST_F(ClientStreamTest, UnreachablePeerClosesAStreamThatNobodyReads) {
  server_->Shutdown();
  const ClientScript<BidiClient> script = ReadAll();
  OpenBidi(script);
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(end_.code(), absl::StatusCode::kUnavailable) << end_;
}

TEST_F(ClientStreamTest, CancelClosesAnIdleStream) {
  service_.bidi.start = [](BidiEcho&) {};
  const ClientScript<BidiClient> script = ReadAll();
  const auto stream = OpenBidi(script);
  ASSERT_TRUE(service_.tally.started.WaitFor(1));
  stream->Cancel();
  stream->Cancel();
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(end_.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stream->Write(MakeEcho(0)), WriteResult::kClosed);
  stream->RequestRead();
  stream->CloseWrites();
}

// The server says its last words and ends while the client still writes and does not read.
TEST_F(ClientStreamTest, MessagesBeforeTheServersEndAreStillRead) {
  service_.bidi.start = [](BidiEcho& handler) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(handler.Write(MakeEcho(i)), WriteResult::kAccepted);
    handler.Finish(absl::AbortedError("enough"));
  };
  const ClientScript<BidiClient> script = ReadAll();
  const auto stream = OpenBidi(script);
  ASSERT_TRUE(service_.tally.closed.WaitFor(1));
  // Nothing is requested here: the failing write itself makes the stream look for its end.
  while (stream->Write(MakeEcho(0)) != WriteResult::kClosed) {
  }
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(client_.messages.value(), 3);
  EXPECT_EQ(end_.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(end_.message(), "enough");
}

TEST_F(ClientStreamTest, DeadlineOfTheScopeEndsTheStream) {
  service_.bidi.start = [](BidiEcho&) {};
  const ClientScript<BidiClient> script = ReadAll();
  OpenBidi(script, {.deadline = absl::Now() + absl::Milliseconds(30)})->RequestRead();
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(end_.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientStreamTest, ServerStreamBringsItsMessagesAndItsStatus) {
  service_.server_stream.start = [](ServerStreamEcho& handler) {
    for (int i = 0; i < handler.request().index(); ++i) {
      EXPECT_EQ(handler.Write(MakeEcho(i)), WriteResult::kAccepted);
    }
    handler.Finish(absl::NotFoundError("no more"));
  };
  const ClientScript<ReadClient> script = {
      .message = [](ReadClient& stream, EchoMessage&) { stream.RequestRead(); },
      .closed = [this](ReadClient&, const absl::Status& status) { end_ = status; }};
  OpenServerStream(script, MakeEcho(5))->RequestRead();
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(client_.messages.value(), 5);
  EXPECT_EQ(end_.code(), absl::StatusCode::kNotFound);
}

TEST_F(ClientStreamTest, EmptyServerStreamClosesWithoutARead) {
  service_.server_stream.start = [](ServerStreamEcho& handler) {
    handler.Finish(absl::PermissionDeniedError("no"));
  };
  const ClientScript<ReadClient> script = {
      .closed = [this](ReadClient&, const absl::Status& status) { end_ = status; }};
  OpenServerStream(script);
  ASSERT_TRUE(client_.closed.WaitFor(1));
  EXPECT_EQ(end_.code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ClientStreamTest, ReadsHappenOnlyOnRequest) {
  service_.server_stream.start = [](ServerStreamEcho& handler) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(handler.Write(MakeEcho(i)), WriteResult::kAccepted);
    handler.Finish(absl::OkStatus());
  };
  const ClientScript<ReadClient> script;
  const auto stream = OpenServerStream(script);
  ASSERT_TRUE(service_.tally.closed.WaitFor(1));
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(client_.messages.value(), i - 1);
    stream->RequestRead();
    ASSERT_TRUE(client_.messages.WaitFor(i));
  }
  stream->RequestRead();
  ASSERT_TRUE(client_.closed.WaitFor(1));
}

TEST_F(ClientStreamTest, CancelledUnaryCallAnswersOnce) {
  std::shared_ptr<UnaryEcho> handler;
  service_.unary.start = [&](UnaryEcho& started) { handler = SharedFrom(&started); };
  absl::Status result;
  WaitableCount done;
  const CallHandle call = CallUnary(stub_->async(), &EchoAsync::Unary, MakeEcho(1), {},
                                    [&](absl::StatusOr<EchoMessage> response) {
                                      result = response.status();
                                      done.Add(1);
                                    });
  ASSERT_TRUE(service_.tally.started.WaitFor(1));
  call.Cancel();
  ASSERT_TRUE(done.WaitFor(1));
  EXPECT_EQ(result.code(), absl::StatusCode::kCancelled);
  call.Cancel();
  CallHandle().Cancel();
  ASSERT_TRUE(service_.tally.closed.WaitFor(1));
  handler.reset();
}

// gRPC would end its callback threads with the last channel, and the thread that drops it here
// would wait for itself.
TEST_F(ClientStreamTest, TheLastChannelOfTheProcessMayGoInsideACallback) {
  service_.unary.start = [](UnaryEcho& handler) { handler.Respond(EchoMessage()); };
  for (int i = 0; i < 5; ++i) {
    WaitableCount alone;
    WaitableCount done;
    CallUnary(stub_->async(), &EchoAsync::Unary, MakeEcho(1), {}, [&](absl::StatusOr<EchoMessage>) {
      EXPECT_TRUE(alone.WaitFor(1));
      done.Add(1);
    });
    ASSERT_TRUE(service_.tally.closed.WaitFor(2 * i + 1));
    stub_.reset();
    server_.reset();
    alone.Add(1);
    ASSERT_TRUE(done.WaitFor(1));
    server_ = Server::Start({.address = "127.0.0.1:0"}, {&service_}).value();
    Connect();
    ASSERT_TRUE(Call({}).ok());
    ASSERT_TRUE(service_.tally.closed.WaitFor(2 * i + 2));
  }
}

}  // namespace
}  // namespace lockstep::rpc
