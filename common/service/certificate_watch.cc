#include "common/service/certificate_watch.h"

#include <utility>

#include "common/rpc/run_after.h"

namespace lockstep::service {
namespace {

// As early as the alert LockstepCertificateEnds.
constexpr absl::Duration kSoon = absl::Hours(14 * 24);
constexpr absl::Duration kLinePeriod = absl::Hours(24);

}  // namespace

CertificateWatch::CertificateWatch(std::shared_ptr<const rpc::Security> security,
                                   const base::Clock* clock, log::Logger logger)
    : security_(std::move(security)), clock_(clock), logger_(std::move(logger)) {}

void CertificateWatch::Start(absl::Duration period) {
  Look();
  LookLater(period);
}

void CertificateWatch::Stop() {
  base::MutexLock lock(&mutex_);
  stopped_ = true;
}

void CertificateWatch::Look() {
  base::MutexLock lock(&mutex_);
  LookLocked();
}

void CertificateWatch::LookLater(absl::Duration period) {
  rpc::RunAfter(period, [weak = weak_from_this(), period] {
    const std::shared_ptr<CertificateWatch> self = weak.lock();
    if (self == nullptr) return;
    {
      base::MutexLock lock(&self->mutex_);
      if (self->stopped_) return;
      self->LookLocked();
    }
    self->LookLater(period);
  });
}

void CertificateWatch::LookLocked() {
  const absl::Time now = clock_->Now();
  const absl::StatusOr<rpc::CertificateEnds> ends = security_->Ends();
  if (!ends.ok()) {
    if (now < next_unread_line_) return;
    next_unread_line_ = now + kLinePeriod;
    logger_.Error("certificate_unread", {{"error", ends.status()}});
    return;
  }
  next_unread_line_ = absl::InfinitePast();
  Note(ends->certificate, now, &certificate_);
  Note(ends->authorities, now, &authorities_);
}

void CertificateWatch::Note(absl::Time end, absl::Time now, File* file) {
  const bool first = file->end == absl::InfinitePast();
  const bool replaced = !first && end != file->end;
  const bool ended = end <= now;
  if (replaced || ended != file->ended) file->next_line = absl::InfinitePast();
  file->end = end;
  file->ended = ended;
  if (replaced)
    logger_.Info("certificate_replaced",
                 {{"file", file->setting}, {"end", absl::FormatTime(end, absl::UTCTimeZone())}});
  if (now + kSoon < end || now < file->next_line) return;
  file->next_line = now + kLinePeriod;
  if (ended) {
    logger_.Error("certificate_ended",
                  {{"file", file->setting}, {"end", absl::FormatTime(end, absl::UTCTimeZone())}});
  } else {
    logger_.Warning("certificate_ends",
                    {{"file", file->setting}, {"end", absl::FormatTime(end, absl::UTCTimeZone())}});
  }
}

}  // namespace lockstep::service
