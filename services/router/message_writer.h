#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "common/rpc/outbox.h"

namespace lockstep::router {

// Gathers items into messages for one stream and keeps what the stream cannot take yet. Messages
// are closed at about 1 MiB, so that no receiver's limit is met however long the stream was stuck.
// Used by one thread at a time; the stream's own drained callback only asks for a Flush().
template <typename Stream, typename Message>
class MessageWriter {
 public:
  explicit MessageWriter(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}

  // The message that the next item goes into. `bytes` is about the item's size.
  Message* Next(size_t bytes) {
    if (waiting_.empty() || (last_bytes_ > 0 && last_bytes_ + bytes > kMessageBytes)) {
      waiting_.emplace_back();
      last_bytes_ = 0;
    }
    last_bytes_ += bytes;
    return &waiting_.back();
  }
  // What the newest message has already is to grow. False when another one has to begin.
  bool Grow(size_t bytes) {
    if (last_bytes_ + bytes > kMessageBytes) return false;
    last_bytes_ += bytes;
    return true;
  }
  void Flush() {
    while (!waiting_.empty()) {
      const rpc::WriteResult result = stream_->Write(std::move(waiting_.front()));
      if (result == rpc::WriteResult::kFull) return;
      waiting_.pop_front();
    }
  }
  // Something waits.
  bool stuck() const { return !waiting_.empty(); }
  Stream* stream() const { return stream_.get(); }

 private:
  static constexpr size_t kMessageBytes = size_t{1} << 20;

  const std::shared_ptr<Stream> stream_;
  std::deque<Message> waiting_;
  size_t last_bytes_ = 0;  // Of the newest message.
};

}  // namespace lockstep::router
