#include "services/router/worker_table.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/router/core_harness.h"

namespace lockstep::router {
namespace {

class WorkerTableTest : public testing::Test {
 protected:
  std::vector<std::string> Usable() {
    std::vector<std::string> ids;
    for (const WorkerLoad& load : table_.Usable(now_)) ids.push_back(load.worker->id.value());
    return ids;
  }
  int64_t LoadOf(const std::string& id) {
    for (const WorkerLoad& load : table_.Usable(now_)) {
      if (load.worker->id.value() == id) return load.load;
    }
    return -1;
  }
  absl::Time now_ = absl::UnixEpoch();
  WorkerTable table_{{}};
};

TEST_F(WorkerTableTest, DrainingWorkersTakeNothing) {
  WorkerState draining = State("b");
  draining.draining = true;
  EXPECT_TRUE(table_.ApplySnapshot({State("a"), draining}, now_));
  EXPECT_EQ(Usable(), (std::vector<std::string>{"a"}));
  EXPECT_FALSE(table_.ApplySnapshot({State("a"), draining}, now_)) << "nobody joined";
}

TEST_F(WorkerTableTest, LoadIsOwnWorkNowPlusOthersBySnapshot) {
  WorkerState a = State("a");
  table_.ApplySnapshot({a}, now_);
  table_.AddRunning(Key("a"), 3, now_);
  table_.AddAdmitting(Key("a"), 1);
  EXPECT_EQ(LoadOf("a"), 4);
  a.running_sequences = 10;  // Three of them are this router's.
  table_.ApplySnapshot({a}, now_);
  EXPECT_EQ(LoadOf("a"), 11);
  table_.AddRunning(Key("a"), -3, now_);
  table_.AddAdmitting(Key("a"), -1);
  EXPECT_EQ(LoadOf("a"), 7);
}

TEST_F(WorkerTableTest, LostIncarnationStaysAwayWhateverALateSnapshotSays) {
  table_.ApplySnapshot({State("a")}, now_);
  table_.Lose(Key("a"));
  EXPECT_FALSE(table_.ApplySnapshot({State("a")}, now_));
  EXPECT_TRUE(Usable().empty());
  EXPECT_TRUE(table_.ApplySnapshot({State("a", 2)}, now_)) << "its next life is welcome";
  EXPECT_EQ(Usable().size(), 1u);
}

TEST_F(WorkerTableTest, BrokenStreamKeepsAWorkerOutForAMomentThatGrows) {
  table_.ApplySnapshot({State("a"), State("b")}, now_);
  table_.StreamBroke(Key("a"), now_);
  EXPECT_EQ(Usable(), (std::vector<std::string>{"b"}));
  EXPECT_EQ(table_.next_suspect_end(), now_ + absl::Milliseconds(100));
  now_ += absl::Milliseconds(100);
  EXPECT_EQ(Usable().size(), 2u);
  table_.StreamBroke(Key("a"), now_);
  EXPECT_EQ(Usable().size(), 1u);
  EXPECT_EQ(table_.next_suspect_end(), now_ + absl::Milliseconds(200));
  table_.FrameCame(table_.Find(Key("a")), now_);
  table_.StreamBroke(Key("a"), now_);
  EXPECT_EQ(Usable().size(), 1u);
  EXPECT_EQ(table_.next_suspect_end(), now_ + absl::Milliseconds(100)) << "it had answered";
}

TEST_F(WorkerTableTest, UnlistedWorkerIsGivenUpOnlyWhenSilent) {
  table_.ApplySnapshot({State("a")}, now_);
  table_.Find(Key("a"))->stream = StreamId(1);
  table_.AddRunning(Key("a"), 1, now_);
  now_ += absl::Seconds(10);
  table_.ApplySnapshot({}, now_);
  EXPECT_TRUE(Usable().empty());
  EXPECT_TRUE(table_.SilentUnlisted(now_).empty());
  now_ += absl::Milliseconds(900);
  table_.FrameCame(table_.Find(Key("a")), now_);
  now_ += absl::Milliseconds(900);
  table_.ApplySnapshot({}, now_);
  EXPECT_TRUE(table_.SilentUnlisted(now_).empty()) << "frames keep it";
  now_ += absl::Milliseconds(100);
  EXPECT_EQ(table_.SilentUnlisted(now_), (std::vector<WorkerKey>{Key("a")}));
}

TEST_F(WorkerTableTest, UnlistedWorkerWithoutWorkIsForgotten) {
  table_.ApplySnapshot({State("a")}, now_);
  table_.ApplySnapshot({}, now_);
  EXPECT_EQ(table_.Find(Key("a")), nullptr);
}

}  // namespace
}  // namespace lockstep::router
