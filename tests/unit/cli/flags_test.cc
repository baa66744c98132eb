#include "services/cli/flags.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/connect_flags.h"

namespace lockstep::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct FlagsTest : ::testing::Test {
  FlagsTest() {
    flags.Require("name", &name, "a name");
    flags.Add("count", &count, "a count");
    flags.Add("wait", &wait, "a time");
    flags.Add("once", &once, "a switch");
    flags.Add("seed", &seed, "a seed");
    flags.Add("stop", &stops, "a list");
  }
  std::string ErrorOf(const Arguments& arguments) {
    return std::string(flags.Parse(arguments).message());
  }

  std::string name;
  int64_t count = 3;
  absl::Duration wait = absl::Seconds(5);
  bool once = false;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  Flags flags{"test", "Tests."};
};

TEST_F(FlagsTest, ReadsEveryKind) {
  ASSERT_TRUE(flags
                  .Parse({"--name=a=b c", "--count=-7", "--wait=250ms", "--once",
                          "--seed=18446744073709551615", "--stop=x", "--stop=y"})
                  .ok());
  EXPECT_EQ(name, "a=b c");
  EXPECT_EQ(count, -7);
  EXPECT_EQ(wait, absl::Milliseconds(250));
  EXPECT_TRUE(once);
  EXPECT_EQ(seed, UINT64_MAX);
  EXPECT_THAT(stops, ElementsAre("x", "y"));
}

TEST_F(FlagsTest, LeavesDefaultsAlone) {
  ASSERT_TRUE(flags.Parse({"--name="}).ok());
  EXPECT_EQ(count, 3);
  EXPECT_FALSE(seed.has_value());
}

TEST_F(FlagsTest, NamesTheFlagThatIsWrong) {
  EXPECT_THAT(ErrorOf({"--nmae=a"}), HasSubstr("--nmae: unknown"));
  EXPECT_THAT(ErrorOf({"--count=many"}), HasSubstr("--count: 'many' is not a whole number"));
  EXPECT_THAT(ErrorOf({"--seed=-1"}), HasSubstr("--seed"));
  EXPECT_THAT(ErrorOf({"--count"}), HasSubstr("--count: needs =value"));
  EXPECT_THAT(ErrorOf({"--once=1"}), HasSubstr("--once: takes no value"));
  EXPECT_THAT(ErrorOf({"name"}), HasSubstr("'name'"));
}

TEST_F(FlagsTest, NamesAFlagThatDoesNotBelongToTheOthers) {
  ASSERT_TRUE(flags.Parse({"--name=a", "--count=3"}).ok());
  EXPECT_TRUE(flags.CheckNotGiven({"wait", "stop"}, "not here").ok());
  EXPECT_EQ(flags.CheckNotGiven({"wait", "count"}, "not here").message(), "--count: not here");
}

TEST_F(FlagsTest, HelpIsNoCodeThatAServerCouldAnswerWith) {
  EXPECT_TRUE(IsHelp(flags.Parse({"--help"})));
  EXPECT_FALSE(IsHelp(absl::CancelledError("the caller has gone")));
  EXPECT_FALSE(IsHelp(absl::OkStatus()));
}

TEST_F(FlagsTest, RefusesAFlagGivenTwice) {
  EXPECT_THAT(ErrorOf({"--name=a", "--name=b"}), HasSubstr("--name: given twice"));
}

TEST_F(FlagsTest, AsksForWhatIsRequired) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("--name: required"));
}

TEST(ConnectFlagsTest, RefuseATargetThatGrpcWouldReadAsAnother) {
  for (const char* target : {"127.0.0.1:7100", "gateway.example:1", "[::1]:65535",
                             "dns:///gateway.example", "unix:/run/gateway"}) {
    EXPECT_TRUE((ConnectFlags{.target = target}).Channel().ok()) << target;
  }
  for (const char* target : {"", "localhost", ":7100", "localhost:", "localhost:0",
                             "localhost:99999", "localhost:http", "http://localhost:7100"}) {
    const absl::Status status = (ConnectFlags{.target = target}).Options().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << target;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--target: \"")) << target;
  }
}

TEST_F(FlagsTest, HelpShowsEveryFlagWithItsDefault) {
  const absl::Status help = flags.Parse({"--help"});
  EXPECT_EQ(help.code(), absl::StatusCode::kCancelled);
  const std::string text(help.message());
  EXPECT_THAT(text, HasSubstr("--count="));
  EXPECT_THAT(text, HasSubstr("a count (default 3)"));
  EXPECT_THAT(text, HasSubstr("(default 5s)"));
  EXPECT_THAT(text, HasSubstr("a name (required)"));
}

}  // namespace
}  // namespace lockstep::cli
