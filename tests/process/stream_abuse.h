#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/process/member_cluster.h"

namespace lockstep::testing {

// A client that misuses its streams, for as long as the object lives. Used from one thread.
class StreamAbuse {
 public:
  virtual ~StreamAbuse() = default;
  virtual absl::string_view name() const = 0;
  // Bytes that the limits of the configuration let one service hold because of it. Each limit
  // counts results; each result is held up to three times (ledger, message, kept answer), in
  // buffers that grow by doubling; what is on its way, in services as deltas of a token each and in
  // the transport, comes on top.
  virtual int64_t bytes_max() const = 0;
  // The same of a router, which joins what waits for a gateway to deltas of many tokens.
  virtual int64_t router_bytes_max() const { return bytes_max(); }
  // How it ended for the client that did it, once it has been stopped.
  virtual absl::Status Stop() = 0;
};

// 50,000 prompts written to one GenerateMany, and nothing read of it.
std::unique_ptr<StreamAbuse> StartUnreadPrompts(MemberCluster* cluster);
// One GenerateMany with as many prompts as it has slots, half-closed, and nothing read of it.
std::unique_ptr<StreamAbuse> StartHalfClose(MemberCluster* cluster);
// GenerateStreams whose connections bring one byte a second; all of them go on when it stops.
std::unique_ptr<StreamAbuse> StartSlowReaders(MemberCluster* cluster);
// An answer of some 20 MB after the other, asked for with gRPC's default limits.
std::unique_ptr<StreamAbuse> StartLargeAnswers(MemberCluster* cluster);
// The same work for a client that takes the answers: no abuse, to compare with.
std::unique_ptr<StreamAbuse> StartLargeAnswersThatAreTaken(MemberCluster* cluster);
// As many threads that only compute as there are cores, with nothing to do with the cluster: what
// sharing the cores costs by itself, to compare with.
std::unique_ptr<StreamAbuse> StartBusyThreads(MemberCluster* cluster);

// Anonymous memory in use by each member, in bytes.
std::map<std::string, int64_t> MemoryOf(const MemberCluster& cluster);

}  // namespace lockstep::testing
