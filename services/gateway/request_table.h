#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/gateway/gateway_metrics.h"
#include "services/gateway/generation.h"

namespace lockstep::gateway {

// Requests by id, in work and finished: a retry attaches instead of running again. A finished one
// is kept for a while, within a bound of bytes; oldest goes first. Thread-safe.
class RequestTable {
 public:
  struct Options {
    absl::Duration result_ttl;
    absl::Duration orphan_grace;  // How long a request runs on after its client went.
    int64_t result_bytes_max = 0;
    int64_t sequences_max = 0;     // Samples in work.
    int64_t prompt_bytes_max = 0;  // Of requests in work.
  };
  // What a request takes while it is in work.
  struct Size {
    int64_t samples = 0;
    int64_t prompt_bytes = 0;
  };
  RequestTable(Options options, const base::Clock* clock, GatewayMetrics* metrics,
               log::Logger logger);

  struct Found {
    std::shared_ptr<Generation> generation;
    bool attached = false;
  };
  // The generation with this id if the body is the same, joined for a caller with this deadline,
  // else a new one by `make`. The caller has to Subscribe. ALREADY_EXISTS: another body under the
  // id. RESOURCE_EXHAUSTED, with a retry delay: too much is in work. `make` runs under the lock
  // and starts nothing.
  using Make = absl::FunctionRef<absl::StatusOr<std::shared_ptr<Generation>>()>;
  absl::StatusOr<Found> FindOrMake(const std::string& request_id, const std::string& body_digest,
                                   Size size, absl::Time deadline, Make make);

  // Null when unknown.
  std::shared_ptr<Generation> Find(const std::string& request_id) const;
  std::vector<std::shared_ptr<Generation>> Running() const;
  // Takes note at once that the request has ended; Sweep notices by itself, but a sweep later.
  void Settle(const Generation& generation);
  // Ends what is past its deadline, drops what was kept long enough. Called often.
  void Sweep();

 private:
  struct Entry {
    std::shared_ptr<Generation> generation;
    std::string body_digest;
    Size size;
    absl::Time started;
    absl::Time finished = absl::InfiniteFuture();
    int64_t bytes = 0;  // Once finished.
  };
  absl::StatusOr<Found> FindOrMakeOnce(const std::string& request_id,
                                       const std::string& body_digest, Size size, Make make);
  absl::Status CheckRoomLocked(Size size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepFinishedLocked(const std::string& request_id, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const base::Clock* const clock_;
  GatewayMetrics* const metrics_;
  const log::Logger logger_;
  mutable base::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Ids of the entries in work, which a sweep walks: many more are kept.
  absl::flat_hash_set<std::string> in_work_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> finished_order_ ABSL_GUARDED_BY(mutex_);  // Oldest first.
  Size in_work_size_ ABSL_GUARDED_BY(mutex_);
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::gateway
