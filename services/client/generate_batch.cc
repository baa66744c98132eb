#include "services/client/generate_batch.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/call_unary.h"
#include "common/rpc/run_after.h"
#include "services/client/retry.h"
#include "services/client/unreached.h"
#include "services/client/whole_answer.h"

namespace lockstep::client {

// A request from its first call to its last. One call of it, or one pause, is under way at a time.
struct GenerateBatch::Item {
  const size_t index;
  const absl::Time deadline;
  WholeAnswer answer;
  std::optional<Retry> retry;  // of the call that is under way
};

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
      reach_(client.options()),
      stub_(v1::RolloutService::NewStub(client.channel())),
      requests_(std::move(requests)),
      answered_(client.answered()) {
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
  Begin(std::make_shared<Item>(Item{.index = index,
                                    .deadline = absl::Now() + reach_.timeout,
                                    .answer = WholeAnswer(&requests_[index])}));
}

void GenerateBatch::Begin(std::shared_ptr<Item> item) {
  item->retry.emplace(reach_.retry, absl::Now(), item->deadline);
  Send(std::move(item));
}

void GenerateBatch::Send(std::shared_ptr<Item> item) {
  using Stub = v1::RolloutService::Stub::async_interface;
  void (Stub::*method)(grpc::ClientContext*, const v1::GenerateRequest*, v1::GenerateResponse*,
                       std::function<void(grpc::Status)>) = &Stub::Generate;
  rpc::CallUnary(
      stub_->async(), method, item->answer.next(), {.deadline = item->deadline},
      [self = shared_from_this(), item](absl::StatusOr<v1::GenerateResponse> answer) mutable {
        if (answer.ok()) {
          self->OnAnswer(std::move(item), *std::move(answer));
        } else {
          self->OnFailure(std::move(item), answer.status());
        }
      });
}

void GenerateBatch::OnAnswer(std::shared_ptr<Item> item, v1::GenerateResponse answer) {
  {
    base::MutexLock lock(&mutex_);
    answered_ = true;
    lost_since_ = absl::InfiniteFuture();
  }
  const absl::StatusOr<bool> whole = item->answer.Take(std::move(answer));
  if (!whole.ok()) {
    End(*item, whole.status());
  } else if (*whole) {
    End(*item, item->answer.Finish());
  } else {
    Begin(std::move(item));
  }
}

void GenerateBatch::OnFailure(std::shared_ptr<Item> item, const absl::Status& failed) {
  const absl::Time now = absl::Now();
  Retry::Failure failure = {.status = failed, .now = now};
  {
    base::MutexLock lock(&mutex_);
    if (AnotherMayServe(failed)) lost_since_ = std::min(lost_since_, now);
    failure.lost_since = lost_since_;
    failure.answered_before = answered_;
  }
  const std::optional<absl::Duration> pause = item->retry->PauseAfter(failure);
  if (pause.has_value()) {
    rpc::RunAfter(*pause, [self = shared_from_this(), item = std::move(item)]() mutable {
      self->Send(std::move(item));
    });
  } else {
    End(*item, item->answer.Finish(WithAttempts(failed, reach_.target, reach_.channel,
                                                item->retry->attempts(now))));
  }
}

void GenerateBatch::End(const Item& item, absl::StatusOr<v1::GenerateResponse> answer) {
  {
    base::MutexLock lock(&mutex_);
    answers_[item.index] = std::move(answer);
  }
  StartNext();
  base::MutexLock lock(&mutex_);
  if (++done_ == requests_.size()) all_done_.NotifyAll();
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
