#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "common/log/outage_log.h"
#include "common/rpc/client_stream.h"
#include "grpcpp/channel.h"
#include "lockstep/v1/scheduler.grpc.pb.h"
#include "services/router/core_driver.h"
#include "services/router/message_writer.h"
#include "services/router/stream_count.h"

namespace lockstep::router {

// The two streams to the scheduler: admissions, and the watch on the workers. Each is opened again
// after it broke: at once where the scheduler is there, and after longer and longer pauses where it
// is there but ends them. Without a connection none is opened, so the connection's own attempts, at
// least one a second, are the only ones. Send() and Flush() belong to the core's sender; the rest
// is thread-safe.
class SchedulerLink {
 public:
  struct Options {
    std::string cluster_id;
    std::string router_id;
    absl::Duration pause_first = absl::Milliseconds(50);
    absl::Duration pause_last = absl::Seconds(1);
    // Streams that are open for so long work.
    absl::Duration settled_after = absl::Seconds(1);
  };
  SchedulerLink(Options options, std::shared_ptr<grpc::Channel> channel, const base::Clock* clock,
                log::Logger logger);
  // Set once, before the first tick.
  void SetDriver(CoreDriver* driver) { driver_ = driver; }

  // Opens what is not open. Called often, by one thread.
  void Tick();
  // To the stream that is open; without one, what is sent is lost and the core has been told.
  void Send(const RouterActions& actions);
  void Flush();
  // Cancels both and waits for their last callbacks. Nothing may be sent or ticked any longer.
  void Shutdown();

 private:
  class AdmitStream;
  class WatchStream;
  // When a stream may be opened again.
  struct Reopening {
    absl::Time at = absl::InfinitePast();
    absl::Duration pause;
  };
  using Writer = MessageWriter<AdmitStream, v1::AdmitCommand>;

  void OpenAdmit();
  void OpenWatch();
  void OnAdmitClosed(const AdmitStream* stream, const absl::Status& status);
  void OnWatchClosed(const absl::Status& status);
  void PostponeLocked(Reopening* reopening) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Writer> writer();

  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::SchedulerService::StubInterface> stub_;
  const base::Clock* const clock_;
  log::OutageLog outage_;
  CoreDriver* driver_ = nullptr;
  StreamCount live_;
  base::Mutex mutex_;
  std::shared_ptr<Writer> admit_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WatchStream> watch_ ABSL_GUARDED_BY(mutex_);
  Reopening admit_reopening_ ABSL_GUARDED_BY(mutex_);
  Reopening watch_reopening_ ABSL_GUARDED_BY(mutex_);
  absl::Time opened_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // The last of them.
};

}  // namespace lockstep::router
