#include "services/client/retry.h"

#include <algorithm>

namespace lockstep::client {
namespace {

constexpr absl::Duration kPauseFirst = absl::Milliseconds(50);
constexpr absl::Duration kPauseLast = absl::Seconds(1);

}  // namespace

bool AnotherMayServe(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status);
}

Retry::Retry(absl::Duration patience, absl::Time begin, absl::Time deadline)
    : patience_(patience), begin_(begin), deadline_(deadline), pause_(kPauseFirst) {}

std::optional<absl::Duration> Retry::PauseAfter(const Failure& failure) {
  ++count_;
  failed_first_ = std::min(failed_first_, failure.now);
  const absl::Time give_up =
      std::min(deadline_, std::min(failed_first_, failure.lost_since) + patience_);
  if (!AnotherMayServe(failure.status) || failure.now + pause_ > give_up) return std::nullopt;
  if (IsSetDifferently(failure.status) && !failure.answered_before) return std::nullopt;
  const absl::Duration pause = pause_;
  pause_ = std::min(2 * pause_, kPauseLast);
  return pause;
}

}  // namespace lockstep::client
