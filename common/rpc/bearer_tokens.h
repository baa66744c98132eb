#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace lockstep::rpc {

// The secrets by which callers say what they are: a directory with one file for each role, named
// like it, one token a line. Two tokens in a file let callers change from one to the other. The
// files may be replaced while the process runs. Thread-safe.
class BearerTokens {
  struct Private {};

 public:
  struct Options {
    std::string directory;
    std::vector<std::string> roles;             // A role without a file has no token.
    absl::Duration reload = absl::Seconds(10);  // Between looks at the files.
    // Told of what could not be read then; the old tokens stay valid, those taken out included.
    std::function<void(const absl::Status&)> on_error;
  };
  // INVALID_ARGUMENT names the file: one that cannot be read, a token shorter than 16 characters or
  // with a space, a token of two roles, or no token at all.
  static absl::StatusOr<std::unique_ptr<BearerTokens>> Create(Options options,
                                                              const base::Clock* clock);
  // For Create().
  BearerTokens(Private, Options options, const base::Clock* clock);

  // The token's role; empty when nobody has it. Reads the files now and then: some hundred bytes,
  // fit for gRPC's threads. What cannot be read then leaves the old tokens valid.
  std::string RoleOf(absl::string_view token);

 private:
  using RoleByToken = absl::flat_hash_map<std::string, std::string>;
  absl::StatusOr<RoleByToken> Read() const;

  const Options options_;
  const base::Clock* const clock_;
  base::Mutex mutex_;
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  RoleByToken roles_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::rpc
