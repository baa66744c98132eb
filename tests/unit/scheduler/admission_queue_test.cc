#include "services/scheduler/admission_queue.h"

#include <set>
#include <utility>

#include "common/base/retry_advice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/scheduler/scheduler_fixture.h"

namespace lockstep::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class AdmissionQueueTest : public testing::Test {
 protected:
  AdmissionQueueTest() {
    Make({.requests_max = 100, .ageing = absl::Seconds(1), .overtake_max = 3});
  }
  void Make(AdmissionQueue::Options options) { queue_.emplace(options); }
  absl::Time At(double seconds) const { return absl::UnixEpoch() + absl::Seconds(seconds); }
  absl::Status Push(uint64_t handle, const std::string& group, double seconds,
                    std::vector<std::string> candidates = {"a"}, int64_t attempt = 0,
                    absl::Time deadline = absl::InfiniteFuture()) {
    AdmissionRequest request{.stream = kStream,
                             .handle = handle,
                             .group = group,
                             .attempt = attempt,
                             .deadline = deadline};
    for (const std::string& id : candidates) request.candidates.push_back(NameOf(id));
    return queue_->Push(std::move(request), At(seconds));
  }
  // Offers worker `id`; those in `fitting` are granted. Returns the grants in order.
  std::vector<uint64_t> Offer(const std::string& id, double seconds, std::set<uint64_t> fitting) {
    std::vector<uint64_t> granted;
    queue_->Offer(NameOf(id), At(seconds), [&](const AdmissionQueue::Waiting& waiting) {
      if (!fitting.contains(waiting.request.handle)) return false;
      granted.push_back(waiting.request.handle);
      return true;
    });
    return granted;
  }
  static std::vector<uint64_t> Handles(const std::vector<AdmissionQueue::Waiting>& waiting) {
    std::vector<uint64_t> handles;
    for (const auto& one : waiting) handles.push_back(one.request.handle);
    return handles;
  }
  std::optional<AdmissionQueue> queue_;
};

TEST_F(AdmissionQueueTest, ServesGroupsInOrderOfArrival) {
  ASSERT_TRUE(Push(1, "g1", 0).ok());
  ASSERT_TRUE(Push(2, "g2", 0).ok());
  ASSERT_TRUE(Push(3, "g1", 0).ok());  // Joins its group, ahead of g2.
  EXPECT_THAT(Offer("a", 0, {1, 2, 3}), ElementsAre(1, 3, 2));
  EXPECT_EQ(queue_->size(), 0u);
}

TEST_F(AdmissionQueueTest, LargeGroupsTakeTurnsWithWhoComesLater) {
  Make({.requests_max = 100, .turn_members = 2});
  for (uint64_t i = 1; i <= 6; ++i) ASSERT_TRUE(Push(i, "large", 0).ok());
  ASSERT_TRUE(Push(7, "single", 0).ok());
  for (uint64_t i = 8; i <= 10; ++i) ASSERT_TRUE(Push(i, "other", 0).ok());
  EXPECT_THAT(Offer("a", 0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),
              ElementsAre(1, 2, 7, 8, 9, 3, 4, 10, 5, 6));
}

TEST_F(AdmissionQueueTest, WhoComesWhileALargeGroupIsServedWaitsForItsNextTurnAtMost) {
  Make({.requests_max = 100, .turn_members = 4});
  for (uint64_t i = 1; i <= 40; ++i) ASSERT_TRUE(Push(i, "large", 0).ok());
  EXPECT_THAT(Offer("a", 0, {1}), ElementsAre(1));
  ASSERT_TRUE(Push(100, "single", 0).ok());
  EXPECT_THAT(Offer("a", 0, {2, 3, 4, 5, 6, 7, 8, 9, 100}),
              ElementsAre(2, 3, 4, 5, 6, 7, 8, 100, 9));
}

TEST_F(AdmissionQueueTest, TurnsOfALargeGroupComeHoweverManyNewGroupsDo) {
  Make({.requests_max = 100, .turn_members = 4});
  for (uint64_t i = 1; i <= 12; ++i) ASSERT_TRUE(Push(i, "large", 0).ok());
  std::set<uint64_t> granted;
  // A newcomer for each grant. The third turn begins after two turns and who came during them.
  for (uint64_t i = 1; i <= 18; ++i) {
    ASSERT_TRUE(Push(100 + i, absl::StrCat("single", i), 5).ok());
    bool free = true;
    queue_->Offer(NameOf("a"), At(5), [&](const AdmissionQueue::Waiting& waiting) {
      if (!std::exchange(free, false)) return false;
      granted.insert(waiting.request.handle);
      return true;
    });
  }
  for (uint64_t i = 1; i <= 12; ++i) EXPECT_TRUE(granted.contains(i)) << i;
}

TEST_F(AdmissionQueueTest, SequencesThatRanBeforeComeFirst) {
  ASSERT_TRUE(Push(1, "g1", 0).ok());
  ASSERT_TRUE(Push(2, "g2", 0, {"a"}, 1).ok());
  EXPECT_THAT(Offer("a", 0, {1, 2}), ElementsAre(2, 1));
}

TEST_F(AdmissionQueueTest, SmallOnesPassALargeOneOnlyUntilItHasAged) {
  ASSERT_TRUE(Push(1, "large", 0).ok());
  ASSERT_TRUE(Push(2, "small", 0.5).ok());
  ASSERT_TRUE(Push(3, "small2", 0.5).ok());
  EXPECT_THAT(Offer("a", 0.9, {2}), ElementsAre(2));
  EXPECT_THAT(Offer("a", 1.0, {3}), IsEmpty());
  EXPECT_THAT(Offer("a", 1.1, {1, 3}), ElementsAre(1, 3));
}

TEST_F(AdmissionQueueTest, AgedGroupBlocksOnAllItsCandidatesAndNowhereElse) {
  ASSERT_TRUE(Push(1, "large", 0, {"a", "b"}).ok());
  ASSERT_TRUE(Push(2, "small", 0, {"b", "c"}).ok());
  EXPECT_THAT(Offer("b", 2, {2}), IsEmpty());
  EXPECT_FALSE(queue_->MayPass(NameOf("a"), 0, At(2)));
  EXPECT_FALSE(queue_->MayPass(NameOf("b"), 0, At(2)));
  EXPECT_TRUE(queue_->MayPass(NameOf("d"), 0, At(2)));
  EXPECT_TRUE(queue_->MayPass(NameOf("a"), 1, At(2)));  // One that ran before is ahead anyway.
  EXPECT_THAT(Offer("c", 2, {2}), ElementsAre(2));
}

TEST_F(AdmissionQueueTest, AgeCountsFromTheGroupsFirstMember) {
  ASSERT_TRUE(Push(1, "g1", 0).ok());
  ASSERT_TRUE(Push(2, "g1", 0.9).ok());
  ASSERT_TRUE(Push(3, "g2", 0.9).ok());
  EXPECT_THAT(Offer("a", 1, {1, 3}), ElementsAre(1));  // 2 is as old as its group.
}

TEST_F(AdmissionQueueTest, LooksAtNoMoreThanItsWindow) {
  for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(Push(i, absl::StrCat("g", i), 0).ok());
  EXPECT_THAT(Offer("a", 0, {5}), IsEmpty());  // 1 to 4 did not fit, which ends the search.
  EXPECT_THAT(Offer("a", 0, {4}), ElementsAre(4));
  EXPECT_FALSE(queue_->MayPass(NameOf("a"), 0, At(0)));
}

TEST_F(AdmissionQueueTest, FullQueueRefusesWithARetryDelay) {
  Make({.requests_max = 2});
  ASSERT_TRUE(Push(1, "g", 0).ok());
  ASSERT_TRUE(Push(2, "g", 0).ok());
  const absl::Status status = Push(3, "g", 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(base::GetRetryAdvice(status).retryable);
  EXPECT_EQ(base::GetRetryAdvice(status).delay, absl::Seconds(5));
  EXPECT_EQ(queue_->size(), 2u);
}

TEST_F(AdmissionQueueTest, DeadlinesExpireInOrderOfTime) {
  ASSERT_TRUE(Push(1, "g", 0, {"a"}, 0, At(9)).ok());
  ASSERT_TRUE(Push(2, "g", 0, {"a"}, 0, At(3)).ok());
  ASSERT_TRUE(Push(3, "g", 0).ok());
  EXPECT_THAT(Handles(queue_->TakeExpired(At(2.9))), IsEmpty());
  EXPECT_THAT(Handles(queue_->TakeExpired(At(9))), ElementsAre(2, 1));
  EXPECT_EQ(queue_->size(), 1u);
}

TEST_F(AdmissionQueueTest, WithdrawnRequestIsGoneAndItsHandleFree) {
  ASSERT_TRUE(Push(1, "g", 0).ok());
  EXPECT_EQ(Push(1, "g", 0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(queue_->Withdraw(kStream, 1).has_value());
  EXPECT_FALSE(queue_->Withdraw(kStream, 1).has_value());
  EXPECT_FALSE(queue_->HasWaiters(NameOf("a")));
  EXPECT_TRUE(Push(1, "g", 0).ok());
}

TEST_F(AdmissionQueueTest, LostWorkerLeavesOnlyThoseWithoutAnotherCandidate) {
  ASSERT_TRUE(Push(1, "g1", 0, {"a"}).ok());
  ASSERT_TRUE(Push(2, "g2", 0, {"a", "b"}).ok());
  EXPECT_THAT(Handles(queue_->RemoveCandidate(NameOf("a"))), ElementsAre(1));
  EXPECT_THAT(Offer("b", 0, {2}), ElementsAre(2));
  EXPECT_EQ(queue_->size(), 0u);
}

}  // namespace
}  // namespace lockstep::scheduler
