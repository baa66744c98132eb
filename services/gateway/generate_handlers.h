#pragma once

#include <deque>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "common/rpc/handler.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/gateway/long_work_thread.h"
#include "services/gateway/request_starter.h"

namespace lockstep::gateway {

// Waits for the end of a generation, then calls a function once.
class FinishObserver final : public GenerationObserver {
 public:
  using Done = absl::AnyInvocable<void(const std::shared_ptr<const Generation>& ended)>;
  explicit FinishObserver(Done done) : done_(std::move(done)) {}
  void OnDelta(v1::GenerateDelta) override {}
  void OnFinished(const std::shared_ptr<const Generation>& ended) override { done_(ended); }
  bool wants_deltas() const override { return false; }

 private:
  Done done_;
};

// One request, one answer: Generate and Score.
template <typename Request, typename Response>
class AnswerHandler final : public rpc::UnaryHandler<Request, Response> {
 public:
  AnswerHandler(const RequestStarter* starter, LongWorkThread* long_work,
                grpc::CallbackServerContext* context, const Request* request, Response* response)
      : rpc::UnaryHandler<Request, Response>(context, request, response),
        starter_(starter),
        long_work_(long_work),
        arrival_(starter->meter().Arrive(this->scope().deadline)) {}

 private:
  void Start() override;
  void OnCancelled() override;
  void OnClosed(const absl::Status& status) override;

  const RequestStarter* const starter_;
  LongWorkThread* const long_work_;
  const RequestMeter::Arrival arrival_;
  std::shared_ptr<Generation> generation_;
  const GenerationObserver* observer_ = nullptr;  // The generation's, a key to unsubscribe by.
};

using GenerateHandler = AnswerHandler<v1::GenerateRequest, v1::GenerateResponse>;
using ScoreHandler = AnswerHandler<v1::ScoreRequest, v1::ScoreResponse>;

// Token deltas as they come. A client that reads slowly stops its own sequences: credit is granted
// as deltas leave.
class GenerateStreamHandler final
    : public rpc::ServerStreamHandler<v1::GenerateRequest, v1::GenerateDelta> {
 public:
  GenerateStreamHandler(const RequestStarter* starter, grpc::CallbackServerContext* context,
                        const v1::GenerateRequest* request)
      : ServerStreamHandler(context, request, rpc::kBoundedByCredit),
        starter_(starter),
        arrival_(starter->meter().Arrive(scope().deadline)) {}

 private:
  class Observer;
  struct Sent {
    int64_t sample = 0;
    int64_t tokens = 0;
  };
  void Start() override;
  void OnCancelled() override;
  void OnWritten() override;
  void OnClosed(const absl::Status& status) override;
  void Send(v1::GenerateDelta delta);

  const RequestStarter* const starter_;
  const RequestMeter::Arrival arrival_;
  std::shared_ptr<Generation> generation_;
  const GenerationObserver* observer_ = nullptr;  // The generation's, a key to unsubscribe by.
  base::Mutex sent_mutex_;
  std::deque<Sent> sent_ ABSL_GUARDED_BY(sent_mutex_);  // Deltas not yet taken by the transport.
};

}  // namespace lockstep::gateway
