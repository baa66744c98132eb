#include "common/config/variables.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::config {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::string> Expand(const std::string& text) {
  return ExpandVariables("a.textproto", text,
                         [](const std::string& variable) -> std::optional<std::string> {
                           if (variable == "POD_NAME") return "worker-0";
                           return std::nullopt;
                         });
}
std::string ErrorOf(const std::string& text) {
  return std::string(Expand(text).status().message());
}

TEST(VariablesTest, PutsValuesIntoTheText) {
  EXPECT_EQ(*Expand("id: \"${POD_NAME}\"\nother: \"a${POD_NAME}b${POD_NAME}\""),
            "id: \"worker-0\"\nother: \"aworker-0bworker-0\"");
  EXPECT_EQ(*Expand("no: \"$POD_NAME {} $\""), "no: \"$POD_NAME {} $\"");
  EXPECT_EQ(*Expand(""), "");
}

TEST(VariablesTest, NamesLineAndVariableOfWhatCannotBeExpanded) {
  EXPECT_EQ(ErrorOf("\n\nx: \"${HOME}\""),
            "a.textproto:3: ${HOME} is none of ${POD_NAME}, ${POD_NAMESPACE}, ${POD_IP} "
            "($${ stands for ${)");
  EXPECT_THAT(ErrorOf("${}"), HasSubstr("1: ${} is none of"));
  EXPECT_THAT(ErrorOf("\"#${HOME}\""), HasSubstr("1: ${HOME} is none of"));
  EXPECT_THAT(ErrorOf("'\\'#${HOME}'"), HasSubstr("1: ${HOME} is none of"));
  for (const std::string variable : {"${POD_IP}", "${POD_NAMESPACE}"}) {
    EXPECT_EQ(ErrorOf(variable), "a.textproto:1: " + variable + " is not set in the environment");
  }
  for (const char* open : {"${", "${POD_NAME", "${POD_NAME\n}", "${}"}) {
    EXPECT_THAT(ErrorOf(open), HasSubstr("a.textproto:1: ${")) << open;
  }
}

TEST(VariablesTest, LeavesCommentsAsTheyAre) {
  for (const char* text :
       {"# ${HOME} and ${} and ${", "a: 1  # '${HOME}'\n", "a: \"\\\"\" # ${X}"}) {
    EXPECT_EQ(*Expand(text), text);
  }
  EXPECT_EQ(*Expand("# it's ${A}\na: \"${POD_NAME}\""), "# it's ${A}\na: \"worker-0\"");
}

TEST(VariablesTest, TwoDollarsStandForOne) {
  EXPECT_EQ(*Expand("a: \"$${POD_NAME} $${} $${\""), "a: \"${POD_NAME} ${} ${\"");
  EXPECT_EQ(*Expand("a: \"$${${POD_NAME}\""), "a: \"${worker-0\"");
  EXPECT_EQ(*Expand("a: \"$$\""), "a: \"$$\"");
}

TEST(VariablesTest, RefusesAValueThatCouldEndAText) {
  for (const char* value : {"a\"b", "a'b", "a\\b", "a\nb"}) {
    const auto expanded =
        ExpandVariables("f", "${POD_NAME}", [&](const std::string&) { return value; });
    EXPECT_THAT(std::string(expanded.status().message()), HasSubstr("has a value with a quote"));
  }
}

}  // namespace
}  // namespace lockstep::config
