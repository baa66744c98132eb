#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace lockstep::rpc {

// What became of a message given to a stream.
enum class WriteResult {
  kAccepted,
  // The outbox has no room. The message is untouched; OnOutboxDrained() follows, once.
  kFull,
  // The stream has ended or was closed for writing. The message is untouched.
  kClosed,
};

struct OutboxLimits {
  size_t messages_max = 64;
  // Serialised size of what waits. One message is always admitted to an empty outbox, whatever its
  // size, so that no message is too large for ever.
  size_t bytes_max = size_t{8} << 20;
};

// For streams whose protocol grants credit: the receiver's credit bounds what can wait.
inline constexpr OutboxLimits kBoundedByCredit = {.messages_max = SIZE_MAX, .bytes_max = SIZE_MAX};

// The write half of a stream: at most one message in flight and a bounded queue behind it. The
// transport reads the message in flight until the write is done, so it stays where it is until
// then. Knows no gRPC and has no lock; the owner's mutex guards it.
template <typename Message>
class Outbox {
 public:
  explicit Outbox(OutboxLimits limits) : limits_(limits) {}

  // kAccepted or kFull; moves from `message` only when accepted.
  WriteResult Push(Message&& message) {
    const size_t bytes = message.ByteSizeLong();
    const bool room = queue_.size() < limits_.messages_max && bytes_ <= limits_.bytes_max &&
                      bytes <= limits_.bytes_max - bytes_;
    if (!room && !queue_.empty()) {
      refused_ = true;
      return WriteResult::kFull;
    }
    queue_.push_back({std::move(message), bytes});
    bytes_ += bytes;
    return WriteResult::kAccepted;
  }

  // The next message to write, now in flight; null when one is in flight already or none waits.
  const Message* StartNext() {
    if (in_flight_ || queue_.empty()) return nullptr;
    in_flight_ = true;
    return &queue_.front().message;
  }

  // Ends the write in flight. True when a producer was refused and now at least half of the room is
  // free again, so that producers are woken once and not for each message.
  bool WriteDone() {
    in_flight_ = false;
    bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    const bool half_free =
        queue_.size() <= limits_.messages_max / 2 && bytes_ <= limits_.bytes_max / 2;
    if (!refused_ || !half_free) return false;
    refused_ = false;
    return true;
  }

  // Drops what waits; the message in flight stays until WriteDone().
  void DropWaiting() {
    while (queue_.size() > (in_flight_ ? 1 : 0)) {
      bytes_ -= queue_.back().bytes;
      queue_.pop_back();
    }
  }

  bool in_flight() const { return in_flight_; }
  bool empty() const { return queue_.empty(); }
  // Messages in flight and waiting.
  size_t size() const { return queue_.size(); }

 private:
  struct Entry {
    Message message;
    size_t bytes;
  };

  const OutboxLimits limits_;
  std::deque<Entry> queue_;  // the front is the message in flight when in_flight_
  size_t bytes_ = 0;
  bool in_flight_ = false;
  bool refused_ = false;
};

}  // namespace lockstep::rpc
