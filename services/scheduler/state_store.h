#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// All that the scheduler must not forget when it is restarted. Everything else is learnt again from
// workers and routers.
struct PersistentState {
  uint64_t scheduler_epoch = 0;      // Of office: counted up at each start.
  base::Epoch admission_epoch{1};    // Never goes down.
  base::Epoch abort_epoch{0};        // Requests that entered before it are aborted.
  std::optional<PauseMode> pause;    // Set while paused.
  std::optional<Contract> contract;  // Of the workers seen last.
  friend bool operator==(const PersistentState&, const PersistentState&) = default;
};

// Where the state is kept: a file, or memory in a simulation.
class StateStore {
 public:
  virtual ~StateStore() = default;
  // What was saved last, by this process or one before it; nullopt when nothing ever was.
  virtual std::optional<PersistentState> Load() const = 0;
  // Durable when it returns OK; on an error the old state is still there.
  virtual absl::Status Save(const PersistentState& state) = 0;
};

}  // namespace lockstep::scheduler
