#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/deadline.h"
#include "common/rpc/outbox.h"
#include "common/rpc/read_gate.h"
#include "common/rpc/status_conversion.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

// The hard part of serving an RPC, written once; handler.h makes the four usable bases of it.
//
// - Lifetime: gRPC owns one reference until the RPC is over, and whoever will answer owns another.
//   An answer that comes after the end of the RPC finds the handler closed and does nothing.
// - The RPC is finished exactly once: by the first of Finish, Respond, Abort, or by the base after
//   a cancel, a passed deadline or a lost client. Everything that comes later does nothing.
// - One write and one read in flight. Every gRPC operation is started under the mutex, and none
//   after the finish; gRPC never runs a callback inside the call that starts an operation.
// Public members are thread-safe and may be called from inside every callback. Callbacks must not
// block. Of the callbacks only OnMessage and OnHalfClose never overlap each other.
namespace lockstep::rpc {

// Common part of the four bases; `Reactor` is gRPC's base class for the kind of RPC.
template <typename Reactor>
class Handler : public Reactor, public std::enable_shared_from_this<Handler<Reactor>> {
 public:
  // Ends the RPC with `status` once all accepted messages are written.
  void Finish(absl::Status status) {
    base::MutexLock lock(&mutex_);
    CloseLocked(std::move(status));
  }
  // Ends the RPC now and drops messages that wait. The client sees `status`, or CANCELLED when a
  // write was in flight, since a client that does not read cannot be sent a status.
  void Abort(absl::Status status) {
    base::MutexLock lock(&mutex_);
    DropWritesLocked();
    CloseLocked(std::move(status));
    if (!finished_) context_->TryCancel();
  }
  // gRPC would move OnDone and OnCancel to another thread of its own, lest they block: one switch a
  // call, for nothing, since no callback blocks.
  bool InternalInlineable() final { return true; }
  // Deadline and trace id that came with the call.
  const CallScope& scope() const { return scope_; }

  // For StartHandler.
  void StartOwned() {
    self_ = this->shared_from_this();
    Start();
  }
  // For StartHandlerOn: `run` takes a function and calls it on another thread.
  template <typename Run>
  void StartOwnedOn(Run&& run) {
    self_ = this->shared_from_this();
    {
      base::MutexLock lock(&mutex_);
      starting_ = true;
    }
    std::forward<Run>(run)([self = self_] { self->StartLate(); });
  }

 protected:
  explicit Handler(grpc::CallbackServerContext* context)
      : context_(context), scope_(ScopeOf(*context)) {}

  // The RPC has begun. Neither OnCancelled nor OnClosed runs before this returns. Not called at all
  // when it was to run on another thread and the client had gone by then.
  virtual void Start() = 0;
  // The client has gone, given up, or cannot be written to, before this side closed the RPC.
  // At most once; the base finishes the RPC afterwards.
  virtual void OnCancelled() {}
  // The last callback, always called: the RPC is over and ended with `status` on this side.
  virtual void OnClosed(const absl::Status& /*status*/) {}

  // In OnClosed only: CANCELLED where the client had gone before the status could be sent, though
  // this side had decided how to end; else `status`.
  absl::Status AsClientGot(const absl::Status& status) const {
    if (!context_->IsCancelled()) return status;
    return absl::CancelledError("the client had gone before it was answered");
  }
  // Valid in Start() only, for metadata and the peer's address.
  grpc::CallbackServerContext* context() const { return context_; }

  void CloseLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!closing_) {
      closing_ = true;
      status_ = std::move(status);
    }
    FinishIfIdleLocked();
  }
  void FinishIfIdleLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!closing_ || finished_ || starting_ || WritesPendingLocked()) return;
    finished_ = true;
    Reactor::Finish(ToGrpcStatus(status_));
  }
  // The peer is lost. True when the domain has to be told by OnCancelled().
  bool BreakLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool tell = !closing_ && !broken_;
    broken_ = true;
    DropWritesLocked();
    if (!starting_) return tell;
    tell_after_start_ |= tell;
    return false;
  }
  // Follows BreakLocked(), without the lock since it calls the domain.
  void CloseBroken(bool tell, absl::Status status) {
    if (tell) OnCancelled();
    base::MutexLock lock(&mutex_);
    CloseLocked(std::move(status));
  }

  virtual bool WritesPendingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return false; }
  virtual void DropWritesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}

  base::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;   // this side decided how the RPC ends
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;    // the client is lost
  bool starting_ ABSL_GUARDED_BY(mutex_) = false;  // Start() runs, or will, on another thread
  bool tell_after_start_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC's Finish was called: no operation follows
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  grpc::CallbackServerContext* const context_;  // gRPC's, alive until the RPC is over

 private:
  void StartLate() {
    bool over;
    {
      base::MutexLock lock(&mutex_);
      over = closing_ || broken_;
    }
    if (!over) Start();
    bool tell;
    {
      base::MutexLock lock(&mutex_);
      starting_ = false;
      tell = tell_after_start_ && !over;
    }
    if (tell) OnCancelled();
    base::MutexLock lock(&mutex_);
    FinishIfIdleLocked();
  }
  void OnCancel() final {
    bool tell;
    {
      base::MutexLock lock(&mutex_);
      tell = BreakLocked();
    }
    CloseBroken(tell, absl::CancelledError("the client has cancelled, timed out or gone"));
  }
  void OnDone() final {
    const std::shared_ptr<Handler> self = std::move(self_);
    absl::Status status;
    {
      base::MutexLock lock(&mutex_);
      status = status_;
    }
    OnClosed(status);
  }

  const CallScope scope_;
  std::shared_ptr<Handler> self_;  // gRPC's reference, set before and dropped after all callbacks
};

// Adds Write() to a handler.
template <typename Base, typename Response>
class WritingHandler : public Base {
 public:
  // Queues `message`; moves from it only when accepted.
  [[nodiscard]] WriteResult Write(Response&& message) {
    base::MutexLock lock(&this->mutex_);
    if (this->closing_ || this->broken_) return WriteResult::kClosed;
    const WriteResult result = outbox_.Push(std::move(message));
    WriteNextLocked();
    return result;
  }

 protected:
  WritingHandler(grpc::CallbackServerContext* context, OutboxLimits limits)
      : Base(context), outbox_(limits) {}

  // One accepted message was taken by the transport.
  virtual void OnWritten() {}
  // After a kFull: there is room again.
  virtual void OnOutboxDrained() {}

  bool WritesPendingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mutex_) override {
    return !outbox_.empty();
  }
  void DropWritesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mutex_) override {
    outbox_.DropWaiting();
  }

 private:
  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mutex_) {
    if (const Response* next = outbox_.StartNext()) this->StartWrite(next);
  }
  void OnWriteDone(bool ok) final {
    bool drained = false;
    bool tell = false;
    {
      base::MutexLock lock(&this->mutex_);
      drained = outbox_.WriteDone();
      if (ok) {
        WriteNextLocked();
        this->FinishIfIdleLocked();
      } else {
        tell = this->BreakLocked();
      }
    }
    // A failed write is not always followed by gRPC's OnCancel, so it ends the RPC by itself.
    if (!ok)
      return this->CloseBroken(tell, absl::CancelledError("the client cannot be written to"));
    OnWritten();
    if (drained) OnOutboxDrained();
  }

  Outbox<Response> outbox_ ABSL_GUARDED_BY(this->mutex_);
};

// Adds RequestRead() to a handler.
template <typename Base, typename Request>
class ReadingHandler : public Base {
 public:
  // Asks for one message: OnMessage or OnHalfClose follows. Call it when there is room.
  void RequestRead() {
    base::MutexLock lock(&this->mutex_);
    if (!this->closing_ && gate_.Request()) this->StartRead(&incoming_);
  }

 protected:
  using Base::Base;

  // A message that was asked for; it may be moved from.
  virtual void OnMessage(Request& message) = 0;
  // The client will send no more. Also what gRPC shows after a message that does not parse, so a
  // protocol in which a cut stream would do harm reads Received<Message> (received.h), or ends by
  // a message that says so.
  virtual void OnHalfClose() = 0;

 private:
  void OnReadDone(bool ok) final {
    {
      base::MutexLock lock(&this->mutex_);
      if (ok) gate_.Arrived();
      if (!ok) gate_.End();
      // The read of a lost client fails as well, but is no half-close; OnCancel follows.
      if (this->closing_ || this->broken_ || (!ok && this->context_->IsCancelled())) return;
    }
    if (!ok) return OnHalfClose();
    OnMessage(incoming_);
    base::MutexLock lock(&this->mutex_);
    if (gate_.Delivered() && !this->closing_) this->StartRead(&incoming_);
  }

  ReadGate gate_ ABSL_GUARDED_BY(this->mutex_);
  Request incoming_;  // gRPC's while a read is in flight, OnMessage's during the delivery
};

}  // namespace lockstep::rpc
