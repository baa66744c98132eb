#include "services/router/prefix_affine_policy.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/router/core_harness.h"

namespace lockstep::router {
namespace {

// Workers with loads, and sequences that stay once they are placed.
class Fleet {
 public:
  explicit Fleet(int count) {
    for (int i = 0; i < count; ++i) keys_.push_back(Key(absl::StrCat("worker-", i)));
    for (const WorkerKey& key : keys_) {
      loads_.push_back({.worker = &key, .name_hash = base::Hash64(key.id.value())});
    }
  }
  RouteChoice Rank(uint64_t key, int64_t count = 1) const {
    return policy_.Rank({.affinity_key = key, .sequence_count = count}, loads_);
  }
  std::string Place(uint64_t key, int64_t count = 1) {
    const WorkerKey* first = Rank(key, count).candidates.front();
    for (WorkerLoad& load : loads_) {
      if (load.worker == first) load.load += count;
    }
    return first->id.value();
  }
  std::vector<WorkerLoad>& loads() { return loads_; }

 private:
  const PrefixAffinePolicy policy_{{}};
  std::vector<WorkerKey> keys_;
  std::vector<WorkerLoad> loads_;
};

TEST(PrefixAffinePolicyTest, EqualKeysMeetOnOneWorkerWhileItIsNotOverloaded) {
  const Fleet fleet(8);
  for (uint64_t key = 0; key < 100; ++key) {
    const RouteChoice choice = fleet.Rank(key);
    EXPECT_EQ(choice.candidates, fleet.Rank(key).candidates);
    EXPECT_EQ(choice.candidates.size(), 4u);
    EXPECT_EQ(choice.reason, RouteReason::kAffine);
  }
}

TEST(PrefixAffinePolicyTest, LosingAWorkerMovesOnlyItsKeys) {
  Fleet fleet(8);
  std::map<uint64_t, std::string> before;
  for (uint64_t key = 0; key < 1000; ++key) {
    before[key] = fleet.Rank(key).candidates.front()->id.value();
  }
  const std::string gone = fleet.loads()[3].worker->id.value();
  fleet.loads().erase(fleet.loads().begin() + 3);
  for (const auto& [key, worker] : before) {
    if (worker == gone) continue;
    EXPECT_EQ(fleet.Rank(key).candidates.front()->id.value(), worker);
  }
}

TEST(PrefixAffinePolicyTest, TwoHundredUniquePromptsShareTwoWorkersAtLeastFortyToSixty) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Fleet fleet(2);
    std::map<std::string, int> placed;
    for (uint64_t i = 0; i < 200; ++i) ++placed[fleet.Place(seed * 1000 + i)];
    ASSERT_EQ(placed.size(), 2u);
    for (const auto& [worker, count] : placed) EXPECT_GE(count, 80) << "seed " << seed;
  }
}

TEST(PrefixAffinePolicyTest, OnePrefixForAllStillSharesTheWorkers) {
  Fleet fleet(2);
  std::map<std::string, int> placed;
  for (int i = 0; i < 200; ++i) ++placed[fleet.Place(/*key=*/7)];
  for (const auto& [worker, count] : placed) EXPECT_GE(count, 80) << worker;
}

TEST(PrefixAffinePolicyTest, OverloadedWorkerComesAfterTheOthersWithReason) {
  Fleet fleet(4);
  const WorkerKey* preferred = fleet.Rank(5).candidates.front();
  for (WorkerLoad& load : fleet.loads()) load.load = load.worker == preferred ? 100 : 10;
  const RouteChoice choice = fleet.Rank(5);
  EXPECT_EQ(choice.reason, RouteReason::kOverflow);
  EXPECT_EQ(choice.candidates.back(), preferred);
}

TEST(PrefixAffinePolicyTest, GroupOnAnIdleClusterStaysTogether) {
  Fleet fleet(4);
  const std::string first = fleet.Place(5, 16);
  EXPECT_EQ(fleet.Rank(5).reason, RouteReason::kOverflow) << "the next one sees its load";
  EXPECT_NE(fleet.Place(5, 16), first);
}

TEST(PrefixAffinePolicyTest, NoWorkerGivesNoCandidate) {
  EXPECT_TRUE(PrefixAffinePolicy({}).Rank({.affinity_key = 1}, {}).candidates.empty());
}

}  // namespace
}  // namespace lockstep::router
