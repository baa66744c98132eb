#include "common/log/outage_log.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/capture_log.h"

namespace lockstep::log {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class OutageLogTest : public ::testing::Test {
 protected:
  // Fails 20 times a second.
  void FailFor(absl::Duration duration) {
    const absl::Time end = clock_.Now() + duration;
    while (clock_.Now() < end) {
      outage_.Failed(absl::UnavailableError("nobody there"));
      clock_.Advance(absl::Milliseconds(50));
    }
  }
  std::vector<std::string> TakeNew() {
    const std::vector<std::string> all = sink_.lines();
    std::vector<std::string> fresh(all.begin() + static_cast<std::ptrdiff_t>(taken_), all.end());
    taken_ = all.size();
    return fresh;
  }

  base::SimClock clock_;
  CaptureSink sink_;
  OutageLog outage_{"scheduler", &clock_, Logger({.service = "test"}, &clock_, &sink_)};
  size_t taken_ = 0;
};

TEST_F(OutageLogTest, APeerThatComesSoonAfterTheStartIsNotTold) {
  FailFor(absl::Seconds(3));
  outage_.Works();
  EXPECT_THAT(TakeNew(), IsEmpty());
}

TEST_F(OutageLogTest, TellsWhenItGoesNowAndThenAndWhenItIsBack) {
  outage_.Works();
  clock_.Advance(absl::Hours(1));
  FailFor(absl::Milliseconds(50));
  EXPECT_THAT(TakeNew(), ElementsAre(HasSubstr("warning test scheduler_away status=\"UNAVAILABLE: "
                                               "nobody there\" seconds=0 failures=1")));
  FailFor(absl::Seconds(9));
  EXPECT_THAT(TakeNew(), IsEmpty());
  FailFor(absl::Seconds(51));
  const auto lines = TakeNew();
  EXPECT_THAT(lines, SizeIs(6));
  EXPECT_THAT(lines.back(), HasSubstr("failures=1201"));
  clock_.Advance(absl::Seconds(3));
  outage_.Works();
  outage_.Works();
  EXPECT_THAT(TakeNew(), ElementsAre(HasSubstr("info test scheduler_back seconds=63.05")));
}

TEST_F(OutageLogTest, OneThatNothingIsTriedWithIsToldOfToo) {
  clock_.Advance(absl::Seconds(5));
  outage_.Still();
  EXPECT_THAT(TakeNew(), IsEmpty());
  clock_.Advance(absl::Seconds(5));
  outage_.Still();
  EXPECT_THAT(TakeNew(), ElementsAre(HasSubstr("not connected yet")));
  outage_.Works();
  clock_.Advance(absl::Hours(1));
  outage_.Still();
  EXPECT_THAT(TakeNew(), ElementsAre(HasSubstr("scheduler_back")));
}

TEST_F(OutageLogTest, OneThatComesAndGoesIsToldOfAsRarely) {
  for (int i = 0; i < 600; ++i) {
    FailFor(absl::Milliseconds(50));
    outage_.Works();
    clock_.Advance(absl::Milliseconds(50));
  }
  EXPECT_LE(TakeNew().size(), 2u * 60 / 10);
}

}  // namespace
}  // namespace lockstep::log
