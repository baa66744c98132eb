#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/v1/router.pb.h"

namespace lockstep::gateway {

// A sequence as the way to the routers sees it. Calls come one at a time, from any thread.
class RouteSequence {
 public:
  virtual ~RouteSequence() = default;
  // What is to be run after its router was lost; nullopt when it has ended, or ends itself because
  // it may not be sent again.
  virtual std::optional<v1::RouteOpen> BuildOpen() = 0;
  // The admission epoch when it entered the cluster: the open that BuildOpen() makes has to say it.
  virtual void OnEntered(uint64_t epoch) = 0;
  virtual void OnDelta(const v1::SequenceDelta& delta) = 0;
  // How many more tokens it may bring; asked when a message is through. They count for BuildOpen()
  // at once and are told to the router together with those of the others in the message.
  virtual int64_t TakeCredit() = 0;
};

// Runs sequences somewhere. Handles are unique for the life of the object; those of sequences that
// ended are ignored. Thread-safe; never calls a sequence from inside its own methods.
class SequenceRoutes {
 public:
  struct Item {
    std::shared_ptr<RouteSequence> sequence;
    v1::RouteOpen open;  // Its handle is set by the routes.
  };
  virtual ~SequenceRoutes() = default;
  // Returns the first of consecutive handles. The items go to one router together.
  virtual uint64_t Open(std::vector<Item> items) = 0;
  virtual void Cancel(uint64_t handle) = 0;
  // It runs or waits nowhere but here, since no router can be reached or its own was lost.
  virtual bool IsStranded(uint64_t handle) const = 0;
  virtual void AddCredit(uint64_t handle, int64_t tokens) = 0;
};

}  // namespace lockstep::gateway
