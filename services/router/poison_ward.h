#pragma once

#include <cstdint>
#include <optional>
#include <set>

namespace lockstep::router {

// Finds the one sequence that ends workers among those that merely ran beside it. Sequences that
// were on several dying workers without getting on in between are suspects; suspects run one at a
// time, so that the next death names the culprit and any result clears the innocent. Not
// thread-safe.
class PoisonWard {
 public:
  // The sequence may only run in its turn.
  void Enter(uint64_t id) {
    if (occupant_ == id) occupant_.reset();
    queue_.insert(id);
  }
  // It has made progress, or is over.
  void Leave(uint64_t id) {
    if (occupant_ == id) occupant_.reset();
    queue_.erase(id);
  }
  // The next suspect whose turn it is, oldest first; it holds the ward until it enters again or
  // leaves. Nullopt when none waits or one has its turn.
  std::optional<uint64_t> TakeTurn() {
    if (occupant_.has_value() || queue_.empty()) return std::nullopt;
    occupant_ = *queue_.begin();
    queue_.erase(queue_.begin());
    return occupant_;
  }
  bool empty() const { return queue_.empty() && !occupant_.has_value(); }

 private:
  std::set<uint64_t> queue_;
  std::optional<uint64_t> occupant_;
};

}  // namespace lockstep::router
