#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace lockstep::rpc {

// Whether a service takes new work: serving -> draining -> drained, never back. Draining becomes
// drained when the last piece of admitted work has ended. Thread-safe.
class DrainState {
 public:
  enum class Phase { kServing, kDraining, kDrained };

  // Held by one piece of work while it runs. Move-only; gives itself back when destroyed.
  class Permit {
   public:
    Permit(Permit&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    Permit& operator=(Permit&& other) noexcept {
      std::swap(state_, other.state_);
      return *this;
    }
    ~Permit() {
      if (state_ != nullptr) state_->Leave();
    }

   private:
    friend class DrainState;
    explicit Permit(DrainState* state) : state_(state) {}
    DrainState* state_;
  };

  // kUnavailable, retryable elsewhere, once draining has begun. The state outlives the permit.
  absl::StatusOr<Permit> Admit();
  // True for the call that began the drain.
  bool BeginDrain();
  // True once drained; false when `timeout` passed first.
  bool WaitDrained(absl::Duration timeout);

  Phase phase() const;
  // Admitted and not yet ended.
  size_t running_count() const;

 private:
  void Leave();

  mutable base::Mutex mutex_;
  base::CondVar drained_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  size_t running_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::rpc
