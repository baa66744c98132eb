#include "common/log/outage_log.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep::log {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(10);

}  // namespace

OutageLog::OutageLog(const std::string& peer, const base::Clock* clock, Logger logger)
    : away_event_(absl::StrCat(peer, "_away")),
      back_event_(absl::StrCat(peer, "_back")),
      clock_(clock),
      logger_(std::move(logger)),
      outage_(Outage{.since = clock->Now()}),
      next_line_(clock->Now() + kPeriod) {}

void OutageLog::Failed(const absl::Status& status) {
  const absl::Time now = clock_->Now();
  base::MutexLock lock(&mutex_);
  if (!outage_.has_value()) outage_ = Outage{.since = now};
  ++outage_->failures;
  outage_->last = status;
  TellLocked(now);
}

void OutageLog::Still() {
  const absl::Time now = clock_->Now();
  base::MutexLock lock(&mutex_);
  if (outage_.has_value()) TellLocked(now);
}

void OutageLog::TellLocked(absl::Time now) {
  if (now < next_line_) return;
  next_line_ = now + kPeriod;
  outage_->told = true;
  logger_.Warning(away_event_, {{"status", outage_->last},
                                {"seconds", now - outage_->since},
                                {"failures", outage_->failures}});
}

void OutageLog::Works() {
  const absl::Time now = clock_->Now();
  base::MutexLock lock(&mutex_);
  if (!outage_.has_value()) return;
  if (outage_->told) {
    logger_.Info(back_event_, {{"seconds", now - outage_->since}, {"failures", outage_->failures}});
  }
  outage_.reset();
}

}  // namespace lockstep::log
