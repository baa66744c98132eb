#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/security.h"
#include "grpcpp/channel.h"

namespace lockstep::rpc {

// How soon a peer that went without a word is found.
struct Keepalive {
  absl::Duration time = absl::Seconds(20);     // Of silence until a ping.
  absl::Duration timeout = absl::Seconds(10);  // Until the ping's answer.
};

// Settings of every channel inside the cluster; the defaults are those that servers expect.
struct ChannelOptions {
  size_t message_bytes_max = size_t{64} << 20;
  Keepalive keepalive;
  // Asked for each new channel in place of `keepalive`, where the times become known only then.
  std::function<Keepalive()> keepalive_now;
  // First and largest pause before a new connection attempt, so that a restarted peer is seen fast.
  absl::Duration backoff_initial = absl::Milliseconds(50);
  absl::Duration backoff_max = absl::Seconds(1);
  // Spread calls over all addresses of a name (a headless service) instead of using the first.
  bool round_robin = false;
  // Null: plaintext.
  std::shared_ptr<const Security> security;
  // Name that the peer's certificate must have in place of the target's own.
  std::string peer_name;
  // Sent with every call; with `security` only.
  std::string bearer_token;
};

// A channel to `target` ("host:port" or a gRPC name) with connections of its own. Never fails; a
// peer that cannot be reached shows in the calls. gRPC's retries and HTTP proxies are off.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ChannelOptions& options = {});

// Channels by peer, made on first use. Several connections per peer are used in turn where one
// would saturate. Thread-safe.
class ChannelPool {
 public:
  struct Options {
    ChannelOptions channel;
    size_t connections_per_peer = 1;
  };
  explicit ChannelPool(Options options);

  std::shared_ptr<grpc::Channel> Get(const std::string& target);
  // Drops the peer; calls in flight keep their channel until they end.
  void Forget(const std::string& target);
  // Peers that have a channel.
  size_t size() const;

 private:
  struct Peer {
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    size_t next_index = 0;
  };

  const Options options_;
  mutable base::Mutex mutex_;
  absl::flat_hash_map<std::string, Peer> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc
