#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/pem_files.h"
#include "common/rpc/security.h"

struct ssl_ctx_st;

namespace lockstep::rpc {

// The certificate of a process for a server that is not gRPC's: one that speaks HTTP through
// OpenSSL. Files may be replaced while it runs, as with Security. Thread-safe.
class HttpsIdentity {
  struct Private {};

 public:
  // INVALID_ARGUMENT names the file that cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpsIdentity>> Create(TlsFiles files,
                                                               const base::Clock* clock);
  // For Create().
  HttpsIdentity(Private, TlsFiles files, const base::Clock* clock);

  // Handshakes of `context`, which this outlives, show what the files hold by then. Clients are not
  // asked for certificates.
  void Install(ssl_ctx_st* context);

 private:
  struct Pair;
  absl::StatusOr<std::shared_ptr<const Pair>> Read() const;
  // Reads the files now and then; a pair that cannot be used leaves the old one.
  std::shared_ptr<const Pair> Current();

  const TlsFiles files_;
  const base::Clock* const clock_;
  base::Mutex mutex_;
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::shared_ptr<const Pair> pair_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc
