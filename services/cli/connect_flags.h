#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/channel_pool.h"
#include "services/cli/flags.h"
#include "services/client/rollout_client.h"

namespace lockstep::cli {

// Port of a gateway when nothing else is said; `up` and all client verbs agree on it.
inline constexpr int kDefaultPort = 7100;

// The one bearer token of a file; INVALID_ARGUMENT names the file.
absl::StatusOr<std::string> ReadToken(const std::string& path);

// Flags that every client verb has.
struct ConnectFlags {
  std::string target = "127.0.0.1:7100";
  absl::Duration timeout = absl::Minutes(10);
  // Files; without authorities the connection is plaintext.
  std::string authorities;
  std::string certificate;
  std::string key;
  std::string server_name;
  std::string token_file;

  void AddTo(Flags* flags);
  // INVALID_ARGUMENT names the flag or the file.
  absl::StatusOr<rpc::ChannelOptions> Channel() const;
  absl::StatusOr<client::RolloutClient::Options> Options() const;
};

}  // namespace lockstep::cli
