#include "services/cli/flags.h"

#include "absl/strings/str_cat.h"
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
    flags.Add("count", &count, {-7, 40}, "a count");
    flags.Add("wait", &wait, {absl::Milliseconds(1), absl::Hours(1)}, "a time");
    flags.Add("once", &once, "a switch");
    flags.Add("seed", &seed, {0, UINT64_MAX}, "a seed");
    flags.Add("part", &part, {0, 1}, "a part");
    flags.Add("ids", &ids, {0, 9}, "ids");
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
  std::optional<float> part;
  std::vector<int64_t> ids = {4};
  std::vector<std::string> stops;
  Flags flags{"test", "Tests."};
};

TEST_F(FlagsTest, ReadsEveryKind) {
  ASSERT_TRUE(flags
                  .Parse({"--name=a=b c", "--count=-7", "--wait=250ms", "--once",
                          "--seed=18446744073709551615", "--stop=x", "--stop=y", "--part=0.5",
                          "--ids=0,9 1"})
                  .ok());
  EXPECT_EQ(name, "a=b c");
  EXPECT_EQ(count, -7);
  EXPECT_EQ(wait, absl::Milliseconds(250));
  EXPECT_TRUE(once);
  EXPECT_EQ(seed, UINT64_MAX);
  EXPECT_THAT(stops, ElementsAre("x", "y"));
  EXPECT_EQ(part, 0.5f);
  EXPECT_THAT(ids, ElementsAre(0, 9, 1));
}

// What reading one flag into `value` fails with.
template <typename T, typename Number>
std::string ErrorOf(T value, Range<Number> range, const std::string& text) {
  Flags flags("test", "Tests.");
  flags.Add("flag", &value, range, "a number");
  return std::string(flags.Parse({"--flag=" + text}).message());
}

TEST(RangeTest, RefusesWhatIsOutside) {
  for (const char* text : {"-8", "41", "9223372036854775807", "-9223372036854775808", "1e3", ""}) {
    EXPECT_EQ(ErrorOf(int64_t{0}, Range<int64_t>{-7, 40}, text),
              absl::StrCat("--flag: '", text, "' is not a whole number in [-7, 40]"));
  }
  for (const char* text : {"0", "-5s", "61m", "inf", "-inf", "30"}) {
    EXPECT_EQ(ErrorOf(absl::Seconds(5),
                      Range<absl::Duration>{absl::Milliseconds(1), absl::Hours(1)}, text),
              absl::StrCat("--flag: '", text, "' is not a duration such as 30s, in [1ms, 1h]"));
  }
  for (const char* text : {"nan", "inf", "-0.1", "1.1", "1e99"}) {
    EXPECT_EQ(ErrorOf(std::optional<float>(), Range<float>{0, 1}, text),
              absl::StrCat("--flag: '", text, "' is not a number in [0, 1]"));
  }
  EXPECT_EQ(ErrorOf(std::vector<int64_t>(), Range<int64_t>{0, 9}, "3,12,5"),
            "--flag: '12' is not a whole number in [0, 9]");
  EXPECT_EQ(ErrorOf(std::vector<int64_t>(), Range<int64_t>{0, 9}, ""),
            "--flag: '' is not a whole number in [0, 9]");
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

TEST(ConnectFlagsTest, RefuseFilesThatNeverEnd) {
  for (const ConnectFlags& connect :
       {ConnectFlags{.authorities = "/dev/zero"},
        ConnectFlags{.authorities = "README.md", .certificate = "/dev/zero", .key = "README.md"}}) {
    const absl::Status status = connect.Channel().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "/dev/zero: is no regular file");
  }
}

TEST_F(FlagsTest, HelpShowsEveryFlagWithItsDefault) {
  const absl::Status help = flags.Parse({"--help"});
  EXPECT_EQ(help.code(), absl::StatusCode::kCancelled);
  const std::string text(help.message());
  EXPECT_THAT(text, HasSubstr("--count="));
  EXPECT_THAT(text, HasSubstr("a count (in [-7, 40], default 3)"));
  EXPECT_THAT(text, HasSubstr("(in [1ms, 1h], default 5s)"));
  EXPECT_THAT(text, HasSubstr("ids (in [0, 9], default 4)"));
  EXPECT_THAT(text, HasSubstr("a name (required)"));
}

}  // namespace
}  // namespace lockstep::cli
