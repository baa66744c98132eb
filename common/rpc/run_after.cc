#include "common/rpc/run_after.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/alarm.h"

namespace lockstep::rpc {
namespace {

struct Wait {
  grpc::Alarm alarm;
  absl::AnyInvocable<void()> then;
};

}  // namespace

void RunAfter(absl::Duration duration, absl::AnyInvocable<void()> then) {
  auto wait = std::make_shared<Wait>();
  wait->then = std::move(then);
  // The alarm keeps its callback as long as it lives, so the callback lets go of the alarm.
  wait->alarm.Set(absl::ToChronoTime(absl::Now() + duration), [wait](bool) mutable {
    const std::shared_ptr<Wait> mine = std::move(wait);
    mine->then();
  });
}

}  // namespace lockstep::rpc
