#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/service/server_settings.h"
#include "lockstep/config/v1/config.pb.h"

namespace lockstep::worker {

// WorkerConfig with defaults filled in and every value checked.
struct WorkerOptions {
  service::ServerSettings server;
  std::string worker_id;
  std::string advertise;
  std::string scheduler;
  std::string model;
  std::string backend;
  std::string certificates_path;
  int64_t threads = 0;  // 0: one per core.
  int64_t reduction_segments = 0;
  int64_t tensor_parallel = 0;  // Ranks.
  int64_t split_kv_size = 0;
  int64_t kv_bytes = 0;  // 0: 256 MiB of the host, or what a device has left.
  int64_t sequences_max = 0;
  int64_t chunk_tokens = 0;
  int64_t context_tokens_max = 0;  // 0: the model's.
  int64_t waiting_max = 0;
  int64_t weight_version = 0;
  int64_t shadow_every_steps = 0;  // 0: never.
  bool prefix_cache = true;
  bool normal = false;  // Normal mode.
};

// Defaults follow the backend. INVALID_ARGUMENT names the field, its value and its range, or the
// two fields that contradict.
absl::StatusOr<WorkerOptions> ReadWorkerOptions(const config::v1::WorkerConfig& config);

}  // namespace lockstep::worker
