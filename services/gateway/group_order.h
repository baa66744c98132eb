#pragma once

#include <cstdint>
#include <deque>

namespace lockstep::gateway {

// The groups of one stream in the order in which they were sent, and how many of them have their
// answers. Not thread-safe.
//
//   const int64_t place = order.Add();  // when a prompt is read
//   order.Finish(place);                // or Refuse; once
class GroupOrder {
 public:
  // The next one, from 0.
  int64_t Add() {
    awaited_.push_back(State::kAwaited);
    return first_ + static_cast<int64_t>(awaited_.size()) - 1;
  }
  void Finish(int64_t place) {
    ++finished_count_;
    Settle(place, State::kFinished);
  }
  // It never was a group: the next one takes its place.
  void Refuse(int64_t place) { Settle(place, State::kRefused); }

  int64_t finished_count() const { return finished_count_; }
  // Of those before the first that is still awaited: how long each takes changes nothing here.
  int64_t finished_in_order_count() const { return finished_in_order_count_; }

 private:
  enum class State { kAwaited, kFinished, kRefused };
  void Settle(int64_t place, State state) {
    awaited_[place - first_] = state;
    while (!awaited_.empty() && awaited_.front() != State::kAwaited) {
      finished_in_order_count_ += awaited_.front() == State::kFinished;
      awaited_.pop_front();
      ++first_;
    }
  }

  std::deque<State> awaited_;  // From the first that is.
  int64_t first_ = 0;
  int64_t finished_count_ = 0;
  int64_t finished_in_order_count_ = 0;
};

}  // namespace lockstep::gateway
