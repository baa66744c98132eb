#pragma once

namespace lockstep::rpc {

// The read half of a stream: a read is started only when the owner asked for a message, at most one
// is in flight, and the next one starts only after the delivery of the last has returned, so that
// deliveries never overlap. Knows no gRPC and has no lock; the owner's mutex guards it.
class ReadGate {
 public:
  // The owner has room for one message. True when a read must be started now. Asking again before
  // the message came is the same as asking once.
  bool Request() {
    if (state_ == State::kDelivering) state_ = State::kDeliveringAndWanted;
    if (state_ != State::kIdle) return false;
    state_ = State::kReading;
    return true;
  }
  // The read in flight brought a message, which is about to be delivered.
  void Arrived() { state_ = State::kDelivering; }
  // The delivery has returned. True when the next read must be started now.
  bool Delivered() {
    const bool wanted = state_ == State::kDeliveringAndWanted;
    state_ = wanted ? State::kReading : State::kIdle;
    return wanted;
  }
  // The read in flight failed: nothing more will come.
  void End() { state_ = State::kEnded; }

 private:
  enum class State { kIdle, kReading, kDelivering, kDeliveringAndWanted, kEnded };
  State state_ = State::kIdle;
};

}  // namespace lockstep::rpc
