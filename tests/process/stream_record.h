#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/client/rollout_client.h"

namespace lockstep::testing {

// What a client saw of one streamed sample.
struct StreamRecord {
  // Not OK also when an index came twice or was left out.
  absl::Status status;
  v1::Sample sample;       // Put together from the deltas.
  absl::Duration gap_max;  // Longest time between two deltas with tokens.
};

// Reads a stream of one sample to its end. `on_tokens` sees how many tokens have come, and the text
// that was certain then, on the calling thread.
StreamRecord ReadStream(
    client::RolloutClient* cluster, const v1::GenerateRequest& request,
    const std::function<void(size_t tokens, const std::string& text)>& on_tokens = nullptr);

// Keeps a number of streams running, each on a thread of its own that starts over when its answer
// is there, and compares every answer with the expected one. Used from one thread.
class StreamLoad {
 public:
  struct Kind {
    v1::GenerateRequest request;
    v1::Sample expected;
  };
  StreamLoad(client::RolloutClient* cluster, const std::vector<Kind>& kinds, int streams);
  // Ends it.
  ~StreamLoad();
  StreamLoad(const StreamLoad&) = delete;
  StreamLoad& operator=(const StreamLoad&) = delete;

  // Tokens that all streams have seen together.
  int64_t tokens() const { return tokens_; }

  struct Result {
    std::vector<std::string> failures;  // Errors, and first differences.
    int64_t answers = 0;
    int64_t resumptions = 0;
    absl::Duration gap_max;
  };
  // No stream starts over; returns when all have ended.
  Result Finish();

 private:
  void Run(const Kind& kind, Result* result);

  client::RolloutClient* const cluster_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> tokens_ = 0;
  std::vector<Result> results_;  // Each of its thread until that has ended.
  std::vector<std::thread> threads_;
};

// A few requests of `new_tokens` tokens with the answers of a quiet cluster, its cache left out.
absl::StatusOr<std::vector<StreamLoad::Kind>> QuietKinds(client::RolloutClient* cluster,
                                                         int64_t new_tokens);

}  // namespace lockstep::testing
