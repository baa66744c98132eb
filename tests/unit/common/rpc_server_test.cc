#include "common/rpc/server.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/health_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_fixture.h"

namespace lockstep::rpc {
namespace {

using testing::HasSubstr;

class ServerTest : public EchoFixture {
 protected:
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  absl::StatusOr<bool> Health(const std::string& name) {
    return CheckHealth(MakeChannel(address()), name, absl::Seconds(10));
  }
};

TEST_F(ServerTest, SecondServerOnAPortIsRefusedByName) {
  const absl::Status status = Server::Start({.address = address()}, {&service_}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address()));
}

TEST_F(ServerTest, AddressThatCannotBeReadOrIsNotOursIsRefused) {
  for (const char* address :
       {"", "nowhere", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999"}) {
    const absl::Status status = Server::Start({.address = address}, {&service_}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
  }
  for (const char* address : {"203.0.113.7:0", "no.such.host.invalid:0"}) {
    const absl::Status status = Server::Start({.address = address}, {&service_}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << address;
  }
}

TEST_F(ServerTest, PortIsFreeAgainAfterShutdown) {
  const std::string old_address = address();
  server_->Shutdown();
  server_.reset();
  absl::StatusOr<std::unique_ptr<Server>> again =
      Server::Start({.address = old_address}, {&service_});
  ASSERT_TRUE(again.ok()) << again.status();
  server_ = *std::move(again);
}

TEST_F(ServerTest, HealthNamesAreKeptApart) {
  EXPECT_EQ(Health("live").value(), true);
  EXPECT_EQ(Health("started").value(), false);
  EXPECT_EQ(Health("ready").value(), false);
  EXPECT_EQ(Health("").value(), false);
  EXPECT_EQ(Health("other").status().code(), absl::StatusCode::kNotFound);
  server_->health().SetStarted(true);
  server_->health().SetReady(true);
  EXPECT_EQ(Health("started").value(), true);
  EXPECT_EQ(Health("ready").value(), true);
  EXPECT_EQ(Health("").value(), true);
  server_->health().SetLive(false);
  EXPECT_EQ(Health("live").value(), false);
  EXPECT_EQ(Health("ready").value(), true);
}

TEST_F(ServerTest, ADrainingServerNeverBecomesReadyAgain) {
  server_->health().SetReady(true);
  server_->health().BeginDrain();
  server_->health().SetReady(true);
  EXPECT_FALSE(server_->health().ready());
  EXPECT_EQ(Health("ready").value(), false);
  EXPECT_EQ(Health("live").value(), true);
}

TEST_F(ServerTest, WhoeverAsksIsToldOfReadiness) {
  std::vector<bool> told;
  server_ = *Server::Start(
      {.address = "127.0.0.1:0", .on_ready = [&](bool ready) { told.push_back(ready); }},
      {&service_});
  server_->health().SetReady(true);
  server_->health().BeginDrain();
  EXPECT_EQ(told, (std::vector<bool>{false, true, false}));
  server_.reset();
}

// Whose client makes a new connection meanwhile, and perhaps to another server.
TEST_F(ServerTest, AStreamOutlivesTheAgeOfItsConnection) {
  server_ = *Server::Start(
      {.address = "127.0.0.1:0", .connection_age_max = absl::Milliseconds(200)}, {&service_});
  const auto channel = MakeChannel(address());
  stub_ = test::EchoService::NewStub(channel);
  std::set<std::string> peers;
  service_.unary.start = [&](UnaryEcho& handler) {
    peers.insert(handler.peer());
    handler.Respond(EchoMessage());
  };
  service_.bidi.start = [](BidiEcho& handler) { handler.RequestRead(); };
  service_.bidi.message = [](BidiEcho& handler, EchoMessage& message) {
    EXPECT_EQ(handler.Write(std::move(message)), WriteResult::kAccepted);
    handler.RequestRead();
  };
  const ClientScript<BidiClient> script;
  const auto stream = OpenBidi(script);
  int sent = 0;
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  while (peers.size() < 4 && absl::Now() < patience) {
    EXPECT_EQ(stream->Write(MakeEcho(sent++)), WriteResult::kAccepted);
    stream->RequestRead();
    ASSERT_TRUE(client_.messages.WaitFor(sent));
    ASSERT_TRUE(Call({}).ok());
  }
  EXPECT_GE(peers.size(), 4u);
  EXPECT_EQ(client_.closed.value(), 0);
  stream->Cancel();
  EXPECT_TRUE(client_.closed.WaitFor(1));
}

TEST_F(ServerTest, HealthOfAnAbsentServerIsUnavailable) {
  const std::string old_address = address();
  server_->Shutdown();
  EXPECT_EQ(CheckHealth(MakeChannel(old_address), "live", absl::Seconds(10)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ServerTest, MessageAboveTheLimitIsRefusedWithTheLimit) {
  constexpr size_t kLimit = 100 << 10;
  absl::StatusOr<std::unique_ptr<Server>> small =
      Server::Start({.address = "127.0.0.1:0", .message_bytes_max = kLimit}, {&service_});
  ASSERT_TRUE(small.ok());
  server_ = *std::move(small);
  Connect();
  service_.unary.start = [](UnaryEcho& handler) { handler.Respond(EchoMessage()); };
  EXPECT_TRUE(Call(MakeEcho(0, kLimit - 100)).ok());
  const absl::Status status = Call(MakeEcho(0, kLimit)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(kLimit)));
}

TEST_F(ServerTest, AnswerAboveTheClientsLimitReachesItAsAnErrorWithTheLimit) {
  constexpr size_t kLimit = 100 << 10;
  service_.unary.start = [](UnaryEcho& handler) { handler.Respond(MakeEcho(0, kLimit)); };
  stub_ = test::EchoService::NewStub(MakeChannel(address(), {.message_bytes_max = kLimit}));
  const absl::Status status = Call({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(kLimit)));
}

TEST_F(ServerTest, MessagesOfTensOfMebibytesPassByDefault) {
  service_.unary.start = [](UnaryEcho& handler) { handler.Respond(handler.request()); };
  const absl::StatusOr<EchoMessage> answer = Call(MakeEcho(3, size_t{40} << 20));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->padding().size(), size_t{40} << 20);
}

// Architecture promises that failover waits for a lease, not for a channel's backoff.
TEST_F(ServerTest, RestartedPeerIsSeenWithinTheBackoffLimit) {
  service_.unary.start = [](UnaryEcho& handler) { handler.Respond(EchoMessage()); };
  const std::string old_address = address();
  ASSERT_TRUE(Call({}).ok());
  server_->Shutdown();
  server_.reset();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(Call({}).ok());
  absl::StatusOr<std::unique_ptr<Server>> again =
      Server::Start({.address = old_address}, {&service_});
  ASSERT_TRUE(again.ok()) << again.status();
  server_ = *std::move(again);
  const absl::Time start = absl::Now();
  while (!Call({}).ok()) {
    ASSERT_LT(absl::Now() - start, absl::Seconds(3));
  }
}

TEST_F(ServerTest, PoolUsesItsConnectionsInTurnAndForgetsPeers) {
  ChannelPool pool({.connections_per_peer = 3});
  std::set<grpc::Channel*> channels;
  for (int i = 0; i < 6; ++i) channels.insert(pool.Get(address()).get());
  EXPECT_EQ(channels.size(), 3u);
  EXPECT_NE(pool.Get("127.0.0.1:1"), pool.Get(address()));
  EXPECT_EQ(pool.size(), 2u);
  const std::shared_ptr<grpc::Channel> kept = pool.Get(address());
  pool.Forget(address());
  pool.Forget(address());
  EXPECT_EQ(pool.size(), 1u);
  EXPECT_TRUE(CheckHealth(kept, "live", absl::Seconds(10)).value());
}

// Each channel of a pool is a connection of its own, which the server sees as another peer port.
TEST_F(ServerTest, ChannelsOfAPoolDoNotShareAConnection) {
  std::set<std::string> peers;
  service_.unary.start = [&](UnaryEcho& handler) {
    peers.insert(handler.peer());
    handler.Respond(EchoMessage());
  };
  ChannelPool pool({.connections_per_peer = 3});
  for (int i = 0; i < 6; ++i) {
    stub_ = test::EchoService::NewStub(pool.Get(address()));
    ASSERT_TRUE(Call({}).ok());
  }
  EXPECT_EQ(peers.size(), 3u);
}

}  // namespace
}  // namespace lockstep::rpc
