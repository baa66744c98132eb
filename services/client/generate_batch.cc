#include "services/client/generate_batch.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/call_unary.h"

namespace lockstep::client {

std::shared_ptr<GenerateBatch> GenerateBatch::Start(const RolloutClient& client,
                                                    std::vector<v1::GenerateRequest> requests,
                                                    Options options) {
  const size_t at_once = std::min(std::max<size_t>(options.in_flight_max, 1), requests.size());
  auto batch =
      std::make_shared<GenerateBatch>(Private(), client, std::move(requests), std::move(options));
  for (size_t i = 0; i < at_once; ++i) batch->StartNext();
  return batch;
}

GenerateBatch::GenerateBatch(Private, const RolloutClient& client,
                             std::vector<v1::GenerateRequest> requests, Options options)
    : options_(std::move(options)),
      timeout_(client.timeout()),
      stub_(v1::RolloutService::NewStub(client.channel())),
      requests_(std::move(requests)) {
  base::MutexLock lock(&mutex_);
  answers_.assign(requests_.size(), absl::UnknownError("not finished"));
}

void GenerateBatch::StartNext() {
  size_t index = 0;
  {
    base::MutexLock lock(&mutex_);
    if (started_ == requests_.size()) return;
    index = started_++;
  }
  using Stub = v1::RolloutService::Stub::async_interface;
  void (Stub::*method)(grpc::ClientContext*, const v1::GenerateRequest*, v1::GenerateResponse*,
                       std::function<void(grpc::Status)>) = &Stub::Generate;
  rpc::CallUnary(stub_->async(), method, requests_[index], {.deadline = absl::Now() + timeout_},
                 [self = shared_from_this(), index](absl::StatusOr<v1::GenerateResponse> answer) {
                   {
                     base::MutexLock lock(&self->mutex_);
                     self->answers_[index] = std::move(answer);
                   }
                   self->StartNext();
                   base::MutexLock lock(&self->mutex_);
                   if (++self->done_ == self->requests_.size()) self->all_done_.NotifyAll();
                 });
}

std::vector<absl::StatusOr<v1::GenerateResponse>> GenerateBatch::Wait() {
  base::MutexLock lock(&mutex_);
  while (done_ < requests_.size()) all_done_.Wait(&mutex_);
  return std::move(answers_);
}

size_t GenerateBatch::done_count() const {
  base::MutexLock lock(&mutex_);
  return done_;
}

}  // namespace lockstep::client
