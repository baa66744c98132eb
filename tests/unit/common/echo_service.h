#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/handler.h"
#include "tests/unit/common/echo.grpc.pb.h"

// A service whose handlers do what a test tells them, and client streams likewise, so that every
// test of the rpc room is a few lambdas.
namespace lockstep::rpc {

using test::EchoMessage;

// A number that threads can wait for.
class WaitableCount {
 public:
  void Add(int amount) {
    base::MutexLock lock(&mutex_);
    value_ += amount;
    changed_.NotifyAll();
  }
  int value() const {
    base::MutexLock lock(&mutex_);
    return value_;
  }
  // False when `value` was not reached within ten seconds.
  bool WaitFor(int value) {
    return WaitUntil([value](int now) { return now == value; });
  }
  bool WaitForAtLeast(int value) {
    return WaitUntil([value](int now) { return now >= value; });
  }

 private:
  bool WaitUntil(const std::function<bool(int)>& reached) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    base::MutexLock lock(&mutex_);
    while (!reached(value_)) {
      if (absl::Now() > deadline) return false;
      changed_.WaitFor(&mutex_, deadline - absl::Now());
    }
    return true;
  }

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  int value_ ABSL_GUARDED_BY(mutex_) = 0;
};

// What happened to the handlers (or streams) of one test.
struct Tally {
  WaitableCount alive;
  WaitableCount started;
  WaitableCount messages;
  WaitableCount half_closes;
  WaitableCount written;
  WaitableCount drained;
  WaitableCount cancelled;
  WaitableCount closed;
};

// What handlers do; every part may be left out. `H` is the handler's type.
template <typename H>
struct Script {
  std::function<void(void*)> made;  // A H::Scripted: there is no H yet.
  std::function<void(H&)> start;
  std::function<void(H&, EchoMessage&)> message;
  std::function<void(H&)> half_close;
  std::function<void(H&)> written;
  std::function<void(H&)> drained;
  std::function<void(H&)> cancelled;
  std::function<void(H&, const absl::Status&)> closed;
  OutboxLimits limits;
};

// The four handlers differ only in their base and in its constructor's arguments.
template <typename Derived, typename Base>
class ScriptedHandler : public Base {
 public:
  using Scripted = ScriptedHandler;
  template <typename... Args>
  ScriptedHandler(const Script<Derived>& script, Tally* tally, Args&&... args)
      : Base(std::forward<Args>(args)...), script_(script), tally_(tally) {
    tally_->alive.Add(1);
    if (script_.made) script_.made(this);
  }
  ~ScriptedHandler() override { tally_->alive.Add(-1); }
  bool over() {
    base::MutexLock lock(&this->mutex_);
    return this->closing_;
  }

 protected:
  Derived& self() { return static_cast<Derived&>(*this); }
  template <typename F, typename... Args>
  void Play(WaitableCount Tally::*count, const F& part, Args&&... args) {
    if (part) part(self(), std::forward<Args>(args)...);
    (tally_->*count).Add(1);
  }

  void Start() override { Play(&Tally::started, script_.start); }
  void OnCancelled() override { Play(&Tally::cancelled, script_.cancelled); }
  void OnClosed(const absl::Status& status) override {
    Play(&Tally::closed, script_.closed, status);
  }

  const Script<Derived>& script_;
  Tally* const tally_;
};

class UnaryEcho final : public ScriptedHandler<UnaryEcho, UnaryHandler<EchoMessage, EchoMessage>> {
 public:
  using ScriptedHandler::ScriptedHandler;
  using UnaryHandler::request;
  std::string peer() const { return context()->peer(); }
};

class ServerStreamEcho final
    : public ScriptedHandler<ServerStreamEcho, ServerStreamHandler<EchoMessage, EchoMessage>> {
 public:
  using ScriptedHandler::ScriptedHandler;
  using ServerStreamHandler::request;

 private:
  void OnWritten() override { Play(&Tally::written, script_.written); }
  void OnOutboxDrained() override { Play(&Tally::drained, script_.drained); }
};

class ClientStreamEcho final
    : public ScriptedHandler<ClientStreamEcho, ClientStreamHandler<EchoMessage, EchoMessage>> {
 public:
  using ScriptedHandler::ScriptedHandler;

 private:
  void OnMessage(EchoMessage& message) override {
    Play(&Tally::messages, script_.message, message);
  }
  void OnHalfClose() override { Play(&Tally::half_closes, script_.half_close); }
};

class BidiEcho final : public ScriptedHandler<BidiEcho, BidiHandler<EchoMessage, EchoMessage>> {
 public:
  using ScriptedHandler::ScriptedHandler;

 private:
  void OnMessage(EchoMessage& message) override {
    Play(&Tally::messages, script_.message, message);
  }
  void OnHalfClose() override { Play(&Tally::half_closes, script_.half_close); }
  void OnWritten() override { Play(&Tally::written, script_.written); }
  void OnOutboxDrained() override { Play(&Tally::drained, script_.drained); }
};

class EchoService final : public test::EchoService::CallbackService {
 public:
  // Where set, takes the starts of unary handlers and streams to a client.
  std::function<void(absl::AnyInvocable<void()>)> run_start;
  Script<UnaryEcho> unary;
  Script<ServerStreamEcho> server_stream;
  Script<ClientStreamEcho> client_stream;
  Script<BidiEcho> bidi;
  Tally tally;

 private:
  template <typename H, typename... Args>
  H* Started(Args&&... args) {
    if (!run_start) return StartHandler<H>(std::forward<Args>(args)...);
    return StartHandlerOn<H>(run_start, std::forward<Args>(args)...);
  }
  grpc::ServerUnaryReactor* Unary(grpc::CallbackServerContext* context, const EchoMessage* request,
                                  EchoMessage* response) override {
    return Started<UnaryEcho>(unary, &tally, context, request, response);
  }
  grpc::ServerWriteReactor<EchoMessage>* ServerStream(grpc::CallbackServerContext* context,
                                                      const EchoMessage* request) override {
    return Started<ServerStreamEcho>(server_stream, &tally, context, request, server_stream.limits);
  }
  grpc::ServerReadReactor<EchoMessage>* ClientStream(grpc::CallbackServerContext* context,
                                                     EchoMessage* response) override {
    return StartHandler<ClientStreamEcho>(client_stream, &tally, context, response);
  }
  grpc::ServerBidiReactor<EchoMessage, EchoMessage>* Bidi(
      grpc::CallbackServerContext* context) override {
    return StartHandler<BidiEcho>(bidi, &tally, context, bidi.limits);
  }
};

// Client streams; `S` is the stream's type.
template <typename S>
struct ClientScript {
  std::function<void(S&, EchoMessage&)> message;
  std::function<void(S&)> drained;
  std::function<void(S&, const absl::Status&)> closed;
  OutboxLimits limits;
};

class BidiClient final : public ClientBidiStream<EchoMessage, EchoMessage> {
 public:
  BidiClient(const ClientScript<BidiClient>& script, Tally* tally, const CallScope& scope = {})
      : ClientBidiStream(scope, script.limits), script_(script), tally_(tally) {
    tally_->alive.Add(1);
  }
  ~BidiClient() override { tally_->alive.Add(-1); }

 private:
  void OnMessage(EchoMessage& message) override {
    if (script_.message) script_.message(*this, message);
    tally_->messages.Add(1);
  }
  void OnOutboxDrained() override {
    if (script_.drained) script_.drained(*this);
    tally_->drained.Add(1);
  }
  void OnClosed(const absl::Status& status) override {
    if (script_.closed) script_.closed(*this, status);
    tally_->closed.Add(1);
  }

  const ClientScript<BidiClient>& script_;
  Tally* const tally_;
};

class ReadClient final : public ClientReadStream<EchoMessage> {
 public:
  ReadClient(const ClientScript<ReadClient>& script, Tally* tally, const CallScope& scope = {})
      : ClientReadStream(scope), script_(script), tally_(tally) {
    tally_->alive.Add(1);
  }
  ~ReadClient() override { tally_->alive.Add(-1); }

 private:
  void OnMessage(EchoMessage& message) override {
    if (script_.message) script_.message(*this, message);
    tally_->messages.Add(1);
  }
  void OnClosed(const absl::Status& status) override {
    if (script_.closed) script_.closed(*this, status);
    tally_->closed.Add(1);
  }

  const ClientScript<ReadClient>& script_;
  Tally* const tally_;
};

inline EchoMessage MakeEcho(int index, size_t padding_bytes = 0) {
  EchoMessage message;
  message.set_index(index);
  message.set_padding(std::string(padding_bytes, 'x'));
  return message;
}

}  // namespace lockstep::rpc
