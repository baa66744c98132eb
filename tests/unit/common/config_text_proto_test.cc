#include "common/config/text_proto.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lockstep/config/v1/config.pb.h"
#include "tests/unit/common/echo.pb.h"

namespace lockstep::config {
namespace {

using test::EchoMessage;
using testing::HasSubstr;

class TextProtoTest : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = testing::TempDir() + "/text_proto_test.textproto";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string ErrorOf(const std::string& text) {
    const absl::Status status = LoadTextProto<EchoMessage>(Write(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
};

TEST_F(TextProtoTest, ReadsFieldsAndComments) {
  const auto message = LoadTextProto<EchoMessage>(Write("# why\ntext: \"a\"\nindex: 7\n"));
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->text(), "a");
  EXPECT_EQ(message->index(), 7);
}

TEST_F(TextProtoTest, EmptyFileIsTheDefaults) {
  EXPECT_TRUE(LoadTextProto<EchoMessage>(Write("")).ok());
}

TEST_F(TextProtoTest, UnknownFieldIsAnErrorWithFileLineAndColumn) {
  const std::string error = ErrorOf("index: 1\n  colour: 2\n");
  EXPECT_THAT(error, HasSubstr("text_proto_test.textproto:2:9: "));
  EXPECT_THAT(error, HasSubstr("colour"));
}

TEST_F(TextProtoTest, WrongTypeRangeAndSyntaxAreErrorsWithTheirLine) {
  EXPECT_THAT(ErrorOf("\n\nindex: \"x\""), HasSubstr(":3:8: "));
  EXPECT_THAT(ErrorOf("index: 99999999999999999999"), HasSubstr(":1:8: "));
  EXPECT_THAT(ErrorOf("text: \"open"), HasSubstr(":1:"));
  EXPECT_THAT(ErrorOf("index 5"), HasSubstr(":1:"));
}

TEST_F(TextProtoTest, FieldGivenTwiceIsAnError) {
  EXPECT_THAT(ErrorOf("index: 1\nindex: 2\n"), HasSubstr(":2:"));
}

// It would silently mean the default, although -1 is refused.
TEST_F(TextProtoTest, NumberGivenAsZeroIsAnErrorWithItsPlace) {
  const std::string error = ErrorOf("text: \"a\"\nindex: 0\n");
  EXPECT_THAT(error, HasSubstr("text_proto_test.textproto:2:1: index: 0 is not more than 0"));
  EXPECT_TRUE(LoadTextProto<EchoMessage>(Write("text: \"\"\n")).ok());
}

// However deep it lies.
TEST_F(TextProtoTest, ZeroIsRefusedForEveryNumberOfEveryRole) {
  int numbers = 0;
  const auto check = [&](const google::protobuf::Message& role, const auto& self,
                         const google::protobuf::Descriptor& type, const std::string& before,
                         const std::string& after) -> void {
    using google::protobuf::FieldDescriptor;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const std::string name(field.name());
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        self(role, self, *field.message_type(), before + name + " { ", after + " }");
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 ||
                 field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        const std::unique_ptr<google::protobuf::Message> message(role.New());
        const absl::Status status =
            ParseTextProto("x", before + name + ": 0" + after, message.get());
        EXPECT_THAT(std::string(status.message()), HasSubstr(name + ": 0 is not more than 0"));
        ++numbers;
      }
    }
  };
  for (const google::protobuf::Message* role :
       {static_cast<const google::protobuf::Message*>(&v1::GatewayConfig::default_instance()),
        static_cast<const google::protobuf::Message*>(&v1::RouterConfig::default_instance()),
        static_cast<const google::protobuf::Message*>(&v1::SchedulerConfig::default_instance()),
        static_cast<const google::protobuf::Message*>(&v1::WorkerConfig::default_instance())}) {
    check(*role, check, *role->GetDescriptor(), "", "");
  }
  EXPECT_GT(numbers, 30);
}

TEST_F(TextProtoTest, UnreadableFileIsAnErrorThatNamesIt) {
  const absl::Status absent = LoadTextProto<EchoMessage>("/nonexistent/a.textproto").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("/nonexistent/a.textproto"));
  const absl::Status directory = LoadTextProto<EchoMessage>(testing::TempDir()).status();
  EXPECT_EQ(directory.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(directory.message()), HasSubstr("Is a directory"));
}

TEST_F(TextProtoTest, AFileWithoutEndIsAnErrorThatNamesItAndTheLimit) {
  EXPECT_EQ(LoadTextProto<EchoMessage>("/dev/zero").status(),
            absl::InvalidArgumentError(
                "/dev/zero: is longer than 1048576 bytes, which is what is read at most"));
}

}  // namespace
}  // namespace lockstep::config
