#include "common/rpc/channel_pool.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/callback_threads.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace lockstep::rpc {
namespace {

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

grpc::ChannelArguments MakeArguments(const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max));
  const Keepalive keepalive = options.keepalive_now ? options.keepalive_now() : options.keepalive;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive.time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive.timeout));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(options.backoff_initial));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(options.backoff_max));
  // Despite its name this is how long one connection attempt may take; gRPC's 20 s would hide a
  // peer whose packets were dropped while it restarted.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(options.backoff_max));
  // A restarted pod has another address; gRPC would look it up every 30 s only.
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  // Each hop decides itself what it sends again.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Without this, channels with equal arguments share one connection behind our back.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!options.peer_name.empty()) arguments.SetSslTargetNameOverride(options.peer_name);
  if (options.round_robin) arguments.SetLoadBalancingPolicyName("round_robin");
  return arguments;
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const ChannelOptions& options) {
  if (options.security == nullptr) return grpc::InsecureChannelCredentials();
  auto credentials = options.security->ChannelCredentials();
  if (options.bearer_token.empty()) return credentials;
  return grpc::CompositeChannelCredentials(credentials,
                                           grpc::AccessTokenCredentials(options.bearer_token));
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ChannelOptions& options) {
  HoldCallbackThreads();
  return grpc::CreateCustomChannel(target, CredentialsOf(options), MakeArguments(options));
}

ChannelPool::ChannelPool(Options options) : options_(std::move(options)) {
  LOCKSTEP_CHECK_GE(options_.connections_per_peer, size_t{1});
}

std::shared_ptr<grpc::Channel> ChannelPool::Get(const std::string& target) {
  base::MutexLock lock(&mutex_);
  Peer& peer = peers_[target];
  while (peer.channels.size() < options_.connections_per_peer) {
    peer.channels.push_back(MakeChannel(target, options_.channel));
  }
  return peer.channels[peer.next_index++ % peer.channels.size()];
}

void ChannelPool::Forget(const std::string& target) {
  Peer dropped;  // destroyed outside the lock: closing a channel is not short
  base::MutexLock lock(&mutex_);
  const auto found = peers_.find(target);
  if (found == peers_.end()) return;
  std::swap(dropped, found->second);
  peers_.erase(found);
}

size_t ChannelPool::size() const {
  base::MutexLock lock(&mutex_);
  return peers_.size();
}

}  // namespace lockstep::rpc
