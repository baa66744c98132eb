#pragma once

#include <string>

#include "absl/time/time.h"
#include "services/cli/flags.h"
#include "services/client/rollout_client.h"

namespace lockstep::cli {

// Port of a gateway when nothing else is said; `up` and all client verbs agree on it.
inline constexpr int kDefaultPort = 7100;

// Flags that every client verb has.
struct ConnectFlags {
  std::string target = "127.0.0.1:7100";
  absl::Duration timeout = absl::Minutes(10);

  void AddTo(Flags* flags) {
    flags->Add("target", &target, "host:port of the gateway");
    flags->Add("timeout", &timeout, "longest wait for one call");
  }
  client::RolloutClient::Options Options() const { return {.target = target, .timeout = timeout}; }
};

}  // namespace lockstep::cli
