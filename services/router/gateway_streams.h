#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/rpc/handler.h"
#include "lockstep/v1/router.pb.h"
#include "services/router/core_driver.h"
#include "services/router/delta_writer.h"

namespace lockstep::router {

class RouteHandler;

// The gateways' streams. Send() and Flush() belong to the core's sender, one thread at a time; the
// rest is thread-safe.
class GatewayStreams {
 public:
  // Set once, before the first stream.
  void SetDriver(CoreDriver* driver) { driver_ = driver; }
  CoreDriver* driver() const { return driver_; }

  // Entries alone are worth no message: they wait for the next delta.
  void Send(const std::vector<GatewayEntry>& entries, std::vector<GatewayDelta> deltas);
  void Flush();

  GatewayId Add(std::shared_ptr<RouteHandler> handler);
  void Remove(GatewayId gateway);
  // A stream that brings new sequences while this router drains is closed with UNAVAILABLE, so that
  // its gateway takes all of it to another router.
  void BeginDrain() { draining_ = true; }
  bool draining() const { return draining_; }
  // Ends all streams after what was written.
  void FinishAll();

 private:
  using Writer = DeltaWriter<RouteHandler>;
  std::vector<std::shared_ptr<Writer>> All();
  std::shared_ptr<Writer> Find(GatewayId gateway);

  CoreDriver* driver_ = nullptr;
  std::atomic<bool> draining_ = false;
  base::Mutex mutex_;
  uint64_t last_gateway_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<GatewayId, std::shared_ptr<Writer>> writers_ ABSL_GUARDED_BY(mutex_);
};

// One gateway's stream. Its end, however it comes, cancels its sequences.
class RouteHandler final : public rpc::BidiHandler<v1::RouteCommand, v1::RouteFrame> {
 public:
  RouteHandler(GatewayStreams* streams, grpc::CallbackServerContext* context)
      : BidiHandler(context, kLimits), streams_(streams) {}

 private:
  // One in flight and one to follow it. What else waits does so where it is joined.
  static constexpr rpc::OutboxLimits kLimits = {.messages_max = 2};

  void Start() override;
  void OnMessage(v1::RouteCommand& command) override;
  void OnHalfClose() override;
  void OnOutboxDrained() override { streams_->driver()->RequestFlush(); }
  void OnClosed(const absl::Status& status) override;

  GatewayStreams* const streams_;
  GatewayId gateway_;
  std::shared_ptr<const std::vector<uint32_t>> last_prompt_;  // Samples of one come in a row.
};

}  // namespace lockstep::router
