#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/log/sink.h"
#include "services/gateway/generation.h"
#include "services/gateway/request_table.h"

namespace lockstep::gateway {

// Remembers what was asked of the routers.
class FakeRoutes final : public SequenceRoutes {
 public:
  uint64_t Open(std::vector<Item> items) override {
    const uint64_t first = opened.size();
    for (Item& item : items) opened.push_back(std::move(item));
    return first;
  }
  void Cancel(uint64_t handle) override { cancelled.push_back(handle); }
  bool IsStranded(uint64_t handle) const override { return stranded.contains(handle); }
  void AddCredit(uint64_t, int64_t tokens) override { credit += tokens; }

  std::vector<Item> opened;
  std::vector<uint64_t> cancelled;
  std::set<uint64_t> stranded;
  int64_t credit = 0;
};

class Watcher final : public GenerationObserver {
 public:
  void OnDelta(v1::GenerateDelta delta) override {
    ids += delta.token_ids();
    finished_samples += delta.has_finished();
  }
  void OnFinished(const std::shared_ptr<const Generation>& ended) override {
    ++finished;
    answer = ended;
  }
  bool wants_deltas() const override { return true; }

  std::string ids;
  int finished_samples = 0;
  int finished = 0;
  std::shared_ptr<const Generation> answer;
};

inline v1::SequenceDelta Token(int64_t begin, int32_t id, bool last) {
  v1::SequenceDelta delta;
  delta.set_token_begin(begin);
  delta.set_token_ids(std::string(reinterpret_cast<const char*>(&id), 4));
  delta.mutable_logprobs()->set_raw(std::string(4, '\0'));
  delta.mutable_logprobs()->set_scaled(std::string(4, '\0'));
  if (last) delta.mutable_end()->set_reason(v1::FINISH_REASON_LENGTH);
  return delta;
}

class GenerationTest : public ::testing::Test {
 protected:
  using Credit = Generation::Credit;

  std::shared_ptr<Generation> Make(int64_t n, Credit credit = Credit::kLedger, bool minted = false,
                                   const std::string& id = "r", int64_t new_tokens = 10,
                                   std::vector<int32_t> given = {}) {
    auto context = std::make_shared<RequestContext>();
    auto limits = std::make_shared<ModelLimits>();
    context->limits = limits;
    context->request.request_id = id;
    context->request.request_id_minted = minted;
    context->request.prompt_ids = {1};
    context->request.generated_ids = std::move(given);
    context->request.n = n;
    context->request.sub_seeds.assign(n, 7);
    context->request.effective.mutable_logprobs()->set_generated(true);
    context->request.effective.mutable_stop()->set_max_new_tokens(new_tokens);
    return std::make_shared<Generation>(
        std::move(context),
        Generation::Options{
            .deadline = clock_.Now() + absl::Seconds(60), .credit = credit, .retry_budget = 2},
        Generation::Deps{
            .routes = &routes_, .clock = &clock_, .metrics = &metrics_, .logger = logger_});
  }

  // A caller of a generation that was made for another one.
  void Attach(Generation* generation, std::shared_ptr<Watcher> watcher,
              absl::Duration timeout = absl::Seconds(60)) {
    ASSERT_TRUE(generation->Join(clock_.Now() + timeout));
    generation->Subscribe(std::move(watcher), clock_.Now() + timeout);
  }
  RequestTable Table(absl::Duration orphan_grace = absl::Seconds(5)) {
    return RequestTable({.result_ttl = absl::Seconds(1000),
                         .orphan_grace = orphan_grace,
                         .result_bytes_max = 1 << 20,
                         .sequences_max = 10},
                        &clock_, &metrics_, logger_);
  }
  absl::Time InAMinute() { return clock_.Now() + absl::Seconds(60); }

  base::SimClock clock_;
  log::StderrSink sink_;
  const log::Logger logger_{{.service = "test", .level_min = log::Level::kError}, &clock_, &sink_};
  metrics::Registry registry_;
  GatewayMetrics metrics_{&registry_};
  FakeRoutes routes_;
};

}  // namespace lockstep::gateway
