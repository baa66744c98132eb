#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/log/logger.h"
#include "common/rpc/client_stream.h"
#include "grpcpp/channel.h"
#include "lockstep/v1/scheduler.grpc.pb.h"
#include "services/router/core_driver.h"
#include "services/router/message_writer.h"
#include "services/router/stream_count.h"

namespace lockstep::router {

// The two streams to the scheduler: admissions, and the watch on the workers. Each is opened again
// after it broke. Send() and Flush() belong to the core's sender; the rest is thread-safe.
class SchedulerLink {
 public:
  struct Options {
    std::string cluster_id;
    std::string router_id;
    absl::Duration reconnect_pause = absl::Milliseconds(100);
  };
  SchedulerLink(Options options, std::shared_ptr<grpc::Channel> channel, const base::Clock* clock,
                log::Logger logger);
  // Set once, before the first tick.
  void SetDriver(CoreDriver* driver) { driver_ = driver; }

  // Opens what is not open, at most once a pause. Called often, by one thread.
  void Tick();
  // To the stream that is open; without one, what is sent is lost and the core has been told.
  void Send(const RouterActions& actions);
  void Flush();
  // Cancels both and waits for their last callbacks. Nothing may be sent or ticked any longer.
  void Shutdown();

 private:
  class AdmitStream;
  class WatchStream;
  using Writer = MessageWriter<AdmitStream, v1::AdmitCommand>;

  void OpenAdmit();
  void OpenWatch();
  void OnAdmitClosed(const AdmitStream* stream, const absl::Status& status);
  void OnWatchClosed(const absl::Status& status);
  std::shared_ptr<Writer> writer();

  const Options options_;
  const std::unique_ptr<v1::SchedulerService::StubInterface> stub_;
  const base::Clock* const clock_;
  const log::Logger logger_;
  CoreDriver* driver_ = nullptr;
  StreamCount live_;
  base::Mutex mutex_;
  std::shared_ptr<Writer> admit_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WatchStream> watch_ ABSL_GUARDED_BY(mutex_);
  absl::Time admit_retry_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Time watch_retry_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace lockstep::router
