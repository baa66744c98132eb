#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::cli {

// What its numbers may be at most: what a worker's configuration takes, and ports in a row.
inline constexpr int64_t kWorkersMax = 64;
inline constexpr int64_t kPortMax = 65535;
inline constexpr int64_t kKvMibMax = int64_t{1} << 24;
inline constexpr int64_t kThreadsMax = 1024;
inline constexpr int64_t kChunkTokensMax = int64_t{1} << 20;
inline constexpr int64_t kSegmentsMax = 64;
inline constexpr int64_t kRanksMax = 64;

// What a local cluster is made of.
struct ClusterOptions {
  std::string model;               // Hugging Face directory, "null:" or "random:SHAPE".
  std::string backend = "cpu";     // Of the workers.
  std::string certificates_path;   // Of backend cuda; empty keeps none.
  std::string mode;                // Empty: deterministic.
  int workers = 2;                 // [1, kWorkersMax]
  int port = 0;                    // Of the gateway; 0 takes free ports for everything.
  std::string run_dir;             // Empty: derived from the port.
  int64_t kv_mib = 0;              // [0, kKvMibMax] of one rank; 0: the worker's default.
  int64_t threads = 0;             // [0, kThreadsMax] of one worker; 0 shares the cores.
  int64_t chunk_tokens = 0;        // [0, kChunkTokensMax]; 0: the worker's default.
  int64_t reduction_segments = 0;  // [0, kSegmentsMax]; 0: the worker's default.
  // Ranks of each worker, [1, kRanksMax], in turn when there are more workers. Empty: the worker's
  // default.
  std::vector<int64_t> tensor_parallel;
  int64_t reserve_horizon_tokens = 0;  // 0: the scheduler's default.
  std::string log_level;               // Empty: the default.
};

// One process of it.
struct Member {
  std::string name;  // "gateway", "router", "scheduler", "worker-0": of its files too.
  std::string role;  // Verb.
  int port = 0;      // gRPC.
  int metrics_port = 0;
  std::string config;  // Text proto.

  std::string address() const;
  std::string metrics_address() const;
};

// All processes with their ports and configurations: pure arithmetic and text, nothing is started.
struct ClusterLayout {
  std::string run_dir;
  std::vector<Member> members;  // In the order in which they start.

  const Member& gateway() const;
  std::vector<int> ports() const;  // Ascending.
};

// INVALID_ARGUMENT names the option, where it is the others or a file that it does not go with;
// each in its own range is the caller's job. With a port given, the gateway has it, and all others
// have the numbers that follow.
absl::StatusOr<ClusterLayout> MakeLayout(const ClusterOptions& options);

// Directory of a cluster's files when none is given.
std::string DefaultRunDir(int port);
// File that holds the process id of a member while it runs.
std::string PidPath(const std::string& run_dir, const std::string& member);

}  // namespace lockstep::cli
