#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/client_stream.h"
#include "grpcpp/channel.h"
#include "lockstep/v1/router.grpc.pb.h"
#include "services/gateway/gateway_metrics.h"
#include "services/gateway/route_sequence.h"

namespace lockstep::gateway {

// One stream to each router. A group goes to one router; groups take routers in turn. When a stream
// is lost, its sequences are opened again on the next router from what their ledgers hold; while no
// router can be reached they wait. Thread-safe.
class RoutePool final : public SequenceRoutes {
 public:
  RoutePool(const std::vector<std::string>& routers, rpc::ChannelOptions channel,
            GatewayMetrics* metrics, log::Logger logger);
  ~RoutePool() override;

  uint64_t Open(std::vector<Item> items) override;
  void Cancel(uint64_t handle) override;
  bool IsStranded(uint64_t handle) const override;
  void AddCredit(uint64_t handle, int64_t tokens) override;

  // Connects to routers and sends what waits. Called often, by one thread.
  void Tick();

 private:
  class Stream;
  struct Link {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::RouterService::StubInterface> stub;
    std::shared_ptr<Stream> stream;  // Null: not connected.
  };
  static constexpr int kNoLink = -1;
  struct Entry {
    std::shared_ptr<RouteSequence> sequence;
    int link = kNoLink;
    int64_t late_credit = 0;  // Granted while it waited; may count a grant twice, never lose one.
  };
  using Group = std::vector<v1::RouteOpen>;

  void OnFrame(int link, const v1::RouteFrame& frame);
  void OnClosed(int link, const absl::Status& status);
  // The next link with a stream, made where the channel is connected; kNoLink when there is none.
  int PickLinkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ConnectLocked(int link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False when no router can be reached; `group` is then untouched.
  bool SendLocked(Group* group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountConnectedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  GatewayMetrics* const metrics_;
  const log::Logger logger_;
  mutable base::Mutex mutex_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::deque<Group> waiting_ ABSL_GUARDED_BY(mutex_);      // For any router.
  std::vector<uint64_t> orphans_ ABSL_GUARDED_BY(mutex_);  // Lost their router; to be rebuilt.
  uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t next_link_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::gateway
