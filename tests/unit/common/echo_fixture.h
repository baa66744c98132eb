#pragma once

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/call_unary.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_service.h"

namespace lockstep::rpc {

using EchoAsync = test::EchoService::StubInterface::async_interface;

// A real server and a real client over loopback. At the end of each test no handler and no stream
// may be left.
class EchoFixture : public ::testing::Test {
 protected:
  EchoFixture() {
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start({.address = "127.0.0.1:0"}, {&service_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    Connect();
  }
  ~EchoFixture() override {
    stub_.reset();
    if (server_ != nullptr) server_->Shutdown();
    EXPECT_TRUE(service_.tally.alive.WaitFor(0));
    EXPECT_TRUE(client_.alive.WaitFor(0));
  }

  void Connect() {
    stub_ = test::EchoService::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", server_->port())));
  }
  std::shared_ptr<BidiClient> OpenBidi(const ClientScript<BidiClient>& script,
                                       const CallScope& scope = {}) {
    return StartStream<BidiClient>(
        [this](grpc::ClientContext* context, auto* reactor) {
          stub_->async()->Bidi(context, reactor);
        },
        script, &client_, scope);
  }
  std::shared_ptr<ReadClient> OpenServerStream(const ClientScript<ReadClient>& script,
                                               const EchoMessage& request = {},
                                               const CallScope& scope = {}) {
    return StartStream<ReadClient>(
        [&](grpc::ClientContext* context, auto* reactor) {
          stub_->async()->ServerStream(context, &request, reactor);
        },
        script, &client_, scope);
  }
  // Makes a unary call and waits for its result.
  absl::StatusOr<EchoMessage> Call(const EchoMessage& request, const CallScope& scope = {}) {
    absl::StatusOr<EchoMessage> result;
    WaitableCount done;
    CallUnary(stub_->async(), &EchoAsync::Unary, request, scope,
              [&](absl::StatusOr<EchoMessage> response) {
                result = std::move(response);
                done.Add(1);
              });
    EXPECT_TRUE(done.WaitFor(1));
    return result;
  }

  EchoService service_;
  Tally client_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<test::EchoService::Stub> stub_;
};

}  // namespace lockstep::rpc
