#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"

namespace lockstep::log {

// Tells of a peer that cannot be reached, however often that is tried: a line when it goes, one
// each ten seconds while it stays away, one when it is back. At first it counts as away, and is
// told of only if it stays so. Thread-safe. Example:
//
//   OutageLog outage("scheduler", clock, logger);
//   if (status.ok()) outage.Works(); else outage.Failed(status);
//
// writes `warning scheduler_away` and `info scheduler_back`.
class OutageLog {
 public:
  OutageLog(const std::string& peer, const base::Clock* clock, Logger logger);

  // An attempt failed, or what had worked does no longer.
  void Failed(const absl::Status& status);
  // Nothing was tried and nothing has changed.
  void Still();
  void Works();

 private:
  struct Outage {
    absl::Time since;
    int64_t failures = 0;
    absl::Status last = absl::UnavailableError("not connected yet");
    bool told = false;
  };
  void TellLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string away_event_;
  const std::string back_event_;
  const base::Clock* const clock_;
  const Logger logger_;
  base::Mutex mutex_;
  std::optional<Outage> outage_ ABSL_GUARDED_BY(mutex_);
  // Over several outages: a peer that comes and goes is told of as rarely.
  absl::Time next_line_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::log
