#pragma once

#include <compare>
#include <ostream>
#include <string>
#include <utility>

namespace lockstep::base {

// A value whose kind is part of its type: a WorkerId cannot be passed where a RequestId is
// expected. Example: using WorkerId = StrongId<struct WorkerIdTag, std::string>;
template <typename Tag, typename Value>
class StrongId {
 public:
  using value_type = Value;
  StrongId() = default;
  explicit StrongId(Value value) : value_(std::move(value)) {}
  const Value& value() const { return value_; }
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, const StrongId& id) {
    return out << id.value_;
  }

 private:
  Value value_{};
};

}  // namespace lockstep::base
