#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "services/client/rollout_client.h"

namespace lockstep::client {

// Many requests in flight at once from one thread. The next one starts when an earlier one ends.
// Each is asked again, and continued, as RolloutClient::Generate() does; once nobody has answered
// for as long as RolloutClient::Options::retry, what is left is tried once. Thread-safe.
//
//   const auto batch = GenerateBatch::Start(cluster, requests, {.in_flight_max = 64});
//   for (const absl::StatusOr<v1::GenerateResponse>& answer : batch->Wait()) …
class GenerateBatch : public std::enable_shared_from_this<GenerateBatch> {
  struct Private {};

 public:
  struct Options {
    size_t in_flight_max = 64;
  };
  // Never waits. The batch keeps itself alive until all of its requests have ended.
  static std::shared_ptr<GenerateBatch> Start(const RolloutClient& client,
                                              std::vector<v1::GenerateRequest> requests,
                                              Options options);
  // For Start().
  GenerateBatch(Private, const RolloutClient& client, std::vector<v1::GenerateRequest> requests,
                Options options);

  // Answers in the order of the requests, once all are there. To be called once.
  std::vector<absl::StatusOr<v1::GenerateResponse>> Wait();
  // Requests that have ended.
  size_t done_count() const;

 private:
  struct Item;

  void StartNext();
  // Makes the next call of a request, and makes it again.
  void Begin(std::shared_ptr<Item> item);
  void Send(std::shared_ptr<Item> item);
  void OnAnswer(std::shared_ptr<Item> item, v1::GenerateResponse answer);
  void OnFailure(std::shared_ptr<Item> item, const absl::Status& failed);
  void End(const Item& item, absl::StatusOr<v1::GenerateResponse> answer);

  const Options options_;
  const RolloutClient::Options reach_;
  const std::unique_ptr<v1::RolloutService::Stub> stub_;
  const std::vector<v1::GenerateRequest> requests_;
  mutable base::Mutex mutex_;
  base::CondVar all_done_;
  size_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool answered_ ABSL_GUARDED_BY(mutex_);
  // When the first of the calls failed that no answer came after.
  absl::Time lost_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::vector<absl::StatusOr<v1::GenerateResponse>> answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::client
