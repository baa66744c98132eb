#include "common/log/logger.h"

#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/ids.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/capture_log.h"

namespace lockstep::log {
namespace {

class LoggerTest : public testing::Test {
 protected:
  Logger Make(Format format, Level level_min = Level::kInfo) {
    return Logger({.service = "router", .format = format, .level_min = level_min}, &clock_, &sink_);
  }

  base::SimClock clock_{absl::FromUnixMicros(1769853600123456)};
  CaptureSink sink_;
};

TEST_F(LoggerTest, TextLineHasTimeLevelServiceEventAndTypedFields) {
  Make(Format::kText)
      .Warning("lease_lost", {{"worker", base::WorkerId("w3")},
                              {"left_seconds", absl::Milliseconds(500)},
                              {"retries", 3},
                              {"bytes", uint64_t{1} << 63},
                              {"final", true},
                              {"ratio", 0.25}});
  EXPECT_EQ(sink_.lines(),
            std::vector<std::string>{
                "2026-01-31T10:00:00.123456Z warning router lease_lost worker=w3 left_seconds=0.5 "
                "retries=3 bytes=9223372036854775808 final=true ratio=0.25\n"});
}

TEST_F(LoggerTest, TraceIdOrRequestIdIsOnEveryLineOfARequestsLogger) {
  const Logger logger = Make(Format::kText);
  logger.ForRequest("a1", "r1").Info("one", {{"n", 1}});
  logger.Info("two");
  ASSERT_EQ(sink_.lines().size(), 2u);
  EXPECT_EQ(sink_.lines()[0], "2026-01-31T10:00:00.123456Z info router one trace_id=a1 n=1\n");
  EXPECT_EQ(sink_.lines()[1], "2026-01-31T10:00:00.123456Z info router two\n");
  logger.ForRequest("", "r1").Info("three");
  EXPECT_EQ(sink_.lines()[2], "2026-01-31T10:00:00.123456Z info router three trace_id=r1\n");
}

TEST_F(LoggerTest, StepsShowAtInfoOnlyForARequestWhoseClientSentATraceId) {
  const Logger logger = Make(Format::kText);
  logger.ForRequest("", "r1").Step("starts");
  logger.Step("starts");
  EXPECT_TRUE(sink_.lines().empty());
  logger.ForRequest("a1", "r1").Step("starts");
  EXPECT_EQ(sink_.lines(), std::vector<std::string>{
                               "2026-01-31T10:00:00.123456Z info router starts trace_id=a1\n"});
}

TEST_F(LoggerTest, LevelsBelowTheMinimumAreNotWritten) {
  const Logger logger = Make(Format::kText, Level::kWarning);
  logger.Debug("a");
  logger.Info("b");
  logger.Warning("c");
  logger.Error("d");
  EXPECT_EQ(sink_.lines().size(), 2u);
  EXPECT_FALSE(logger.enabled(Level::kInfo));
  EXPECT_TRUE(logger.enabled(Level::kError));
}

// Whatever a peer sends, one event is one line and cannot forge another field or line.
TEST_F(LoggerTest, HostileTextStaysOneQuotedValue) {
  Make(Format::kText).Info("e", {{"peer", "a b=\"c\"\\\n2026 error router fake"}, {"empty", ""}});
  EXPECT_EQ(sink_.lines()[0],
            "2026-01-31T10:00:00.123456Z info router e "
            "peer=\"a b=\\\"c\\\"\\\\\\n2026 error router fake\" empty=\"\"\n");
}

TEST_F(LoggerTest, EveryJsonLineParsesBackToItsValues) {
  std::string all_bytes;
  for (int byte = 0; byte < 128; ++byte) all_bytes += static_cast<char>(byte);
  all_bytes += "\u20ac\U0001F600";
  Make(Format::kJson)
      .ForRequest("t\"1", "")
      .Error("failed", {{"text", all_bytes},
                        {"broken", "\xFF\xC3"},
                        {"status", absl::NotFoundError("no \"x\"")},
                        {"count", -5},
                        {"nan", std::numeric_limits<double>::quiet_NaN()},
                        {"ok", false}});
  const std::string line = sink_.lines()[0];
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << line;
  EXPECT_EQ(json["ts"], "2026-01-31T10:00:00.123456Z");
  EXPECT_EQ(json["level"], "error");
  EXPECT_EQ(json["service"], "router");
  EXPECT_EQ(json["event"], "failed");
  EXPECT_EQ(json["trace_id"], "t\"1");
  EXPECT_EQ(json["text"], all_bytes);
  EXPECT_EQ(json["broken"], "\uFFFD\uFFFD");
  EXPECT_EQ(json["status"], "NOT_FOUND: no \"x\"");
  EXPECT_EQ(json["count"], -5);
  EXPECT_EQ(json["nan"], "nan");
  EXPECT_EQ(json["ok"], false);
}

TEST_F(LoggerTest, LinesOfSeveralThreadsDoNotMix) {
  const Logger logger = Make(Format::kText);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([logger, t] {
        for (int i = 0; i < 250; ++i) logger.Info("e", {{"thread", t}, {"i", i}});
      });
    }
  }
  const std::vector<std::string> lines = sink_.lines();
  EXPECT_EQ(lines.size(), 1000u);
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 1000u);
}

}  // namespace
}  // namespace lockstep::log
