#include "services/router/core_driver.h"

#include <utility>

namespace lockstep::router {

CoreDriver::CoreDriver(RouterCoreOptions options, RouterCoreDeps deps, Send send)
    : clock_(deps.clock),
      metrics_(deps.metrics),
      send_(std::move(send)),
      core_(options, std::move(deps)) {}

void CoreDriver::Tick() {
  {
    base::MutexLock lock(&mutex_);
    if (core_.NextWakeup() > clock_->Now()) return;
    core_.Tick();
  }
  SendActions();
}

void CoreDriver::RequestFlush() {
  {
    base::MutexLock lock(&mutex_);
    flush_requested_ = true;
  }
  SendActions();
}

void CoreDriver::SendActions() {
  mutex_.Lock();
  if (sending_ || stopped_) {
    mutex_.Unlock();
    return;
  }
  sending_ = true;
  while (!stopped_) {
    RouterActions actions = core_.TakeActions();
    const bool flush = std::exchange(flush_requested_, false);
    if (actions.empty() && !flush) break;
    mutex_.Unlock();
    send_(std::move(actions), flush);
    mutex_.Lock();
  }
  sending_ = false;
  changed_.NotifyAll();
  mutex_.Unlock();
}

void CoreDriver::StopSending() {
  base::MutexLock lock(&mutex_);
  stopped_ = true;
  while (sending_) changed_.Wait(&mutex_);
}

bool CoreDriver::Empty() {
  base::MutexLock lock(&mutex_);
  return core_.sequence_count() == 0;
}

}  // namespace lockstep::router
