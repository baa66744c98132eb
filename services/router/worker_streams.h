#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/client_stream.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "services/router/core_driver.h"
#include "services/router/message_writer.h"
#include "services/router/stream_count.h"

namespace lockstep::router {

// One stream to each worker that has sequences of this router. The core numbers streams upwards:
// the first batch of a higher number opens a stream, a batch of a number that is not open any
// longer is dropped, since the core has been told. Send(), Flush() and Close() belong to the core's
// sender; the rest is thread-safe.
class WorkerStreams {
 public:
  WorkerStreams(std::string cluster_id, rpc::ChannelOptions channel);
  // Set once, before the first batch.
  void SetDriver(CoreDriver* driver) { driver_ = driver; }

  void Send(const std::vector<WorkerBatch>& batches);
  void Flush();
  void Close(StreamId stream);
  // Cancels all and waits for their last callbacks. Nothing may be sent any longer.
  void Shutdown();

 private:
  class Stream;
  using Writer = MessageWriter<Stream, v1::WorkerCommand>;

  std::shared_ptr<Writer> FindOrOpen(const WorkerBatch& batch);
  void Append(const WorkerBatch& batch, Writer* writer);
  v1::WorkerCommand* NextCommand(const WorkerBatch& batch, size_t bytes, Writer* writer);
  void OnClosed(StreamId stream, const std::string& address, const absl::Status& status);

  const std::string cluster_id_;
  rpc::ChannelPool channels_;
  CoreDriver* driver_ = nullptr;
  StreamId last_opened_;  // The sender's.
  StreamCount live_;
  base::Mutex mutex_;
  absl::flat_hash_map<StreamId, std::shared_ptr<Writer>> writers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::router
