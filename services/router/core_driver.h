#pragma once

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "services/router/router_core.h"

namespace lockstep::router {

// Lets many threads give events to the core and sends what comes out, in order.
//
// An event is applied by the thread that brings it, under one mutex. Then one thread at a time, the
// sender, takes the collected actions and sends them without the mutex; a thread that finds a
// sender at work leaves its actions to it and goes. So an idle router answers without a thread
// switch, and a busy one gathers the actions of many events into few messages. Thread-safe.
class CoreDriver {
 public:
  // `send` is called by one thread at a time and must not apply events. `flush`: some receiver has
  // room again.
  using Send = std::function<void(RouterActions actions, bool flush)>;

  CoreDriver(RouterCoreOptions options, RouterCoreDeps deps, Send send);

  // Calls `event` with the core.
  template <typename Event>
  void Apply(Event&& event) {
    const absl::Time begin = clock_->Now();
    {
      base::MutexLock lock(&mutex_);
      std::forward<Event>(event)(&core_);
    }
    SendActions();
    metrics_->event_seconds.Observe(clock_->Now() - begin);
  }
  // Ticks the core if it is due.
  void Tick();
  void RequestFlush();
  // Nothing is sent after this; events change the core only.
  void StopSending();
  // No sequence is open.
  bool Empty();

 private:
  void SendActions();

  const base::Clock* const clock_;
  RouterMetrics* const metrics_;
  const Send send_;
  base::Mutex mutex_;
  base::CondVar changed_;  // The sender has left.
  RouterCore core_ ABSL_GUARDED_BY(mutex_);
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool flush_requested_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::router
