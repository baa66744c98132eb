#include "services/gateway/route_pool.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/log/sink.h"
#include "common/rpc/handler.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"

namespace lockstep::gateway {
namespace {

// A router that brings one token of each sequence of a command, in one frame, and keeps the first
// credit that it is given.
class FakeRouter final : public v1::RouterService::CallbackService {
 public:
  FakeRouter() {
    auto server = rpc::Server::Start({.address = "127.0.0.1:0"}, {this});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  const v1::RouteCommand& WaitForCredit() {
    EXPECT_TRUE(credited_.WaitForNotificationWithTimeout(absl::Seconds(20)));
    return credit_;
  }
  grpc::ServerBidiReactor<v1::RouteCommand, v1::RouteFrame>* Route(
      grpc::CallbackServerContext* context) override {
    return rpc::StartHandler<Handler>(this, context);
  }

 private:
  class Handler final : public rpc::BidiHandler<v1::RouteCommand, v1::RouteFrame> {
   public:
    Handler(FakeRouter* owner, grpc::CallbackServerContext* context)
        : BidiHandler(context), owner_(owner) {}

   private:
    void Start() override { RequestRead(); }
    void OnHalfClose() override { Finish(absl::OkStatus()); }
    void OnMessage(v1::RouteCommand& command) override {
      if (!command.credit().empty() && !owner_->credited_.HasBeenNotified()) {
        owner_->credit_ = command;
        owner_->credited_.Notify();
      }
      v1::RouteFrame frame;
      for (const v1::RouteOpen& open : command.open()) {
        frame.add_deltas()->set_handle(open.handle());
      }
      if (!frame.deltas().empty()) (void)Write(std::move(frame));
      RequestRead();
    }
    FakeRouter* const owner_;
  };

  v1::RouteCommand credit_;
  absl::Notification credited_;
  std::unique_ptr<rpc::Server> server_;
};

class FakeSequence final : public RouteSequence {
 public:
  explicit FakeSequence(int64_t credit) : credit_(credit) {}
  std::optional<v1::RouteOpen> BuildOpen() override { return std::nullopt; }
  void OnEntered(uint64_t) override {}
  void OnDelta(const v1::SequenceDelta&) override {}
  int64_t TakeCredit() override { return std::exchange(credit_, 0); }

 private:
  int64_t credit_;
};

TEST(RoutePoolTest, SequencesOfOneFrameAreGrantedToInOneMessage) {
  constexpr int kSequences = 64;
  FakeRouter router;
  base::RealClock clock;
  log::StderrSink sink;
  metrics::Registry registry;
  GatewayMetrics metrics(&registry);
  RoutePool pool({router.address()}, rpc::ChannelOptions(), &metrics,
                 log::Logger({.service = "test", .level_min = log::Level::kError}, &clock, &sink));
  std::vector<SequenceRoutes::Item> items;
  for (int i = 0; i < kSequences; ++i) {
    // One of them needs nothing yet.
    items.push_back({std::make_shared<FakeSequence>(i == 7 ? 0 : 100 + i), v1::RouteOpen()});
  }
  const uint64_t first = pool.Open(std::move(items));
  while (metrics.routers_connected.value() == 0) pool.Tick();
  const v1::RouteCommand& command = router.WaitForCredit();
  ASSERT_EQ(command.credit_size(), kSequences - 1);
  for (int i = 0; i < command.credit_size(); ++i) {
    const int sequence = i < 7 ? i : i + 1;
    EXPECT_EQ(command.credit(i).handle(), first + sequence);
    EXPECT_EQ(command.credit(i).tokens(), 100 + sequence);
  }
}

}  // namespace
}  // namespace lockstep::gateway
