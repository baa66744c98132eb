#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lockstep/v1/router.pb.h"
#include "services/router/message_writer.h"
#include "services/router/router_actions.h"
#include "services/router/wire.h"

namespace lockstep::router {

// Gathers what goes to one gateway. While its stream takes nothing, results of a sequence are
// joined: what waits is a delta a sequence then, not one a token. Used by one thread at a time.
template <typename Stream>
class DeltaWriter {
 public:
  explicit DeltaWriter(std::shared_ptr<Stream> stream) : writer_(std::move(stream)) {}

  void Add(const GatewayEntry& entry) {
    // Two varints of ten bytes, and what is around them.
    constexpr size_t kEntryBytes = 32;
    v1::RouteEntry* message = Next(kEntryBytes)->add_entries();
    message->set_handle(entry.handle);
    message->set_epoch(entry.epoch.value());
  }
  void Add(SequenceDelta delta) {
    if (stuck_ && Join(delta)) return;
    const uint64_t handle = delta.handle;
    v1::SequenceDelta* message = Next(WireBytes(delta))->add_deltas();
    EncodeDelta(std::move(delta), message);
    if (stuck_) last_of_[handle] = message;
  }
  void Flush() {
    writer_.Flush();
    stuck_ = writer_.stuck();
    if (!stuck_) Forget(nullptr);
  }
  Stream* stream() const { return writer_.stream(); }

 private:
  v1::RouteFrame* Next(size_t bytes) {
    v1::RouteFrame* frame = writer_.Next(bytes);
    if (frame != newest_) Forget(frame);
    return frame;
  }
  bool Join(const SequenceDelta& delta) {
    const auto last = last_of_.find(delta.handle);
    return last != last_of_.end() && writer_.Grow(ArrayBytes(delta)) &&
           JoinDelta(delta, last->second);
  }
  // Only the newest frame grows, and it leaves last.
  void Forget(v1::RouteFrame* newest) {
    newest_ = newest;
    last_of_.clear();
  }

  MessageWriter<Stream, v1::RouteFrame> writer_;
  bool stuck_ = false;  // The last flush left something.
  v1::RouteFrame* newest_ = nullptr;
  absl::flat_hash_map<uint64_t, v1::SequenceDelta*> last_of_;  // By handle, in the newest frame.
};

}  // namespace lockstep::router
