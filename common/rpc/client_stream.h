#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/rpc/deadline.h"
#include "common/rpc/outbox.h"
#include "common/rpc/read_gate.h"
#include "common/rpc/status_conversion.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

// One object per stream that this process opened. Derive from ClientBidiStream or ClientReadStream:
//
//   class WorkerStream final : public rpc::ClientBidiStream<ToWorker, FromWorker> {
//    public:
//     WorkerStream(const rpc::CallScope& scope, Core* core)
//         : ClientBidiStream(scope), core_(core) {}
//    private:
//     void OnMessage(FromWorker& frame) override { core_->Frame(frame); RequestRead(); }
//     void OnClosed(const absl::Status& status) override { core_->StreamLost(status); }
//   };
//   auto stream = rpc::StartStream<WorkerStream>(
//       [&](grpc::ClientContext* context, auto* reactor) {
//         stub->async()->Stream(context, reactor);
//       }, scope, core);
//   stream->RequestRead();
//
// gRPC owns one reference until OnClosed has run; the caller's keeps the object usable after that:
// operations then do nothing. Public members are thread-safe and may be called from callbacks.
// Callbacks must not block. OnMessage never overlaps itself; OnClosed comes last, exactly once.
// The end of a stream is noticed by its reads, so an owner that wants to know keeps one requested.
namespace lockstep::rpc {

// Common part; `Reactor` is gRPC's base class for the kind of stream.
template <typename Reactor, typename Response>
class ClientStream : public Reactor,
                     public std::enable_shared_from_this<ClientStream<Reactor, Response>> {
 public:
  // Asks for one message: OnMessage or, at the end of the stream, OnClosed follows.
  void RequestRead() {
    base::MutexLock lock(&mutex_);
    RequestReadLocked();
  }
  // Ends the stream now; OnClosed follows with kCancelled unless the stream had ended already.
  void Cancel() {
    base::MutexLock lock(&mutex_);
    context_.TryCancel();
    EndLocked();
  }

  // For StartStream. `connect` hands the context and this reactor to the stub.
  template <typename Connect>
  void StartOwned(Connect&& connect) {
    self_ = this->shared_from_this();
    std::forward<Connect>(connect)(&context_, static_cast<Reactor*>(this));
    // Reads and writes come from outside of callbacks, so gRPC must not end the call while this
    // object may still start one. Released by EndLocked().
    this->AddHold();
    this->StartCall();
  }

 protected:
  explicit ClientStream(const CallScope& scope) { ApplyScope(scope, &context_); }

  // A message that was asked for; it may be moved from.
  virtual void OnMessage(Response& message) = 0;
  virtual void OnClosed(const absl::Status& status) = 0;

  void RequestReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ended_ && gate_.Request()) this->StartRead(&incoming_);
  }
  // No operation is started after this; those in flight fail or finish by themselves.
  void EndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ended_) return;
    ended_ = true;
    this->RemoveHold();
  }

  base::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;

 private:
  // Not ok: the call failed, or was answered by a status alone, before any message.
  void OnReadInitialMetadataDone(bool ok) final {
    if (ok) return;
    base::MutexLock lock(&mutex_);
    EndLocked();
  }
  void OnReadDone(bool ok) final {
    {
      base::MutexLock lock(&mutex_);
      if (ok) gate_.Arrived();
      if (!ok) gate_.End();
      if (!ok) EndLocked();
      if (ended_) return;
    }
    OnMessage(incoming_);
    base::MutexLock lock(&mutex_);
    if (gate_.Delivered() && !ended_) this->StartRead(&incoming_);
  }
  void OnDone(const grpc::Status& status) final {
    const std::shared_ptr<ClientStream> self = std::move(self_);
    OnClosed(FromGrpcStatus(status));
  }

  grpc::ClientContext context_;
  ReadGate gate_ ABSL_GUARDED_BY(mutex_);
  Response incoming_;  // gRPC's while a read is in flight, OnMessage's during the delivery
  std::shared_ptr<ClientStream> self_;  // gRPC's reference, dropped after all callbacks
};

// A stream that only brings messages, for example a watch.
template <typename Response>
class ClientReadStream : public ClientStream<grpc::ClientReadReactor<Response>, Response> {
 protected:
  using ClientReadStream::ClientStream::ClientStream;
};

template <typename Request, typename Response>
class ClientBidiStream : public ClientStream<grpc::ClientBidiReactor<Request, Response>, Response> {
 public:
  // Queues `message`; moves from it only when accepted.
  [[nodiscard]] WriteResult Write(Request&& message) {
    base::MutexLock lock(&this->mutex_);
    if (this->ended_ || writes_closed_) return WriteResult::kClosed;
    const WriteResult result = outbox_.Push(std::move(message));
    WriteNextLocked();
    return result;
  }
  // Half-closes the stream once all accepted messages are written. Reads go on.
  void CloseWrites() {
    base::MutexLock lock(&this->mutex_);
    if (this->ended_ || writes_closed_) return;
    writes_closed_ = true;
    WriteNextLocked();
  }

 protected:
  explicit ClientBidiStream(const CallScope& scope, OutboxLimits limits = {})
      : ClientBidiStream::ClientStream(scope), outbox_(limits) {}

  // After a kFull: there is room again.
  virtual void OnOutboxDrained() {}

 private:
  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mutex_) {
    if (this->ended_) return;
    if (const Request* next = outbox_.StartNext()) {
      this->StartWrite(next);
    } else if (writes_closed_ && outbox_.empty() && !half_closed_) {
      half_closed_ = true;
      this->StartWritesDone();
    }
  }
  void OnWriteDone(bool ok) final {
    bool drained = false;
    {
      base::MutexLock lock(&this->mutex_);
      drained = outbox_.WriteDone();
      if (ok) {
        WriteNextLocked();
      } else {
        // The server has ended the call or is lost. What it sent before can still be read, and a
        // read tells the end, so one is started even if the owner has not asked for it.
        drained = false;
        writes_closed_ = half_closed_ = true;
        outbox_.DropWaiting();
        this->RequestReadLocked();
      }
    }
    if (drained) OnOutboxDrained();
  }

  Outbox<Request> outbox_ ABSL_GUARDED_BY(this->mutex_);
  bool writes_closed_ ABSL_GUARDED_BY(this->mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(this->mutex_) = false;
};

// Makes a stream and opens it. `connect` is called once with (grpc::ClientContext*, reactor).
template <typename S, typename Connect, typename... Args>
std::shared_ptr<S> StartStream(Connect&& connect, Args&&... args) {
  const std::shared_ptr<S> stream = std::make_shared<S>(std::forward<Args>(args)...);
  stream->StartOwned(std::forward<Connect>(connect));
  return stream;
}

}  // namespace lockstep::rpc
