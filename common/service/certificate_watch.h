#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "common/rpc/security.h"

namespace lockstep::service {

// Says in the log when a certificate of the process is replaced, ends soon or has ended: the peers'
// failed handshakes would name neither file nor date. Thread-safe.
class CertificateWatch : public std::enable_shared_from_this<CertificateWatch> {
 public:
  // `clock` and what `logger` writes to are used until Stop().
  CertificateWatch(std::shared_ptr<const rpc::Security> security, const base::Clock* clock,
                   log::Logger logger);

  // Looks now, and again after each `period`, on one of gRPC's threads.
  void Start(absl::Duration period);
  // Returns when no look is under way and none will come.
  void Stop();
  // One look. A line comes when something has changed, and once a day while it is as bad.
  void Look();

 private:
  struct File {
    const char* setting;
    absl::Time end = absl::InfinitePast();  // Of the look before; InfinitePast: there was none.
    bool ended = false;
    absl::Time next_line = absl::InfinitePast();
  };

  void LookLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Note(absl::Time end, absl::Time now, File* file) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookLater(absl::Duration period);

  const std::shared_ptr<const rpc::Security> security_;
  const base::Clock* const clock_;
  const log::Logger logger_;
  base::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  File certificate_ ABSL_GUARDED_BY(mutex_) = {.setting = "certificate_file"};
  File authorities_ ABSL_GUARDED_BY(mutex_) = {.setting = "authorities_file"};
  absl::Time next_unread_line_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace lockstep::service
