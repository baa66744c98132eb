#include "common/base/regular_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

using ::testing::HasSubstr;

class RegularFileTest : public ::testing::Test {
 protected:
  RegularFileTest() : folder_(::testing::TempDir() + "regular_file_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~RegularFileTest() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  void ExpectRefused(const std::string& path, const std::string& why) const {
    const absl::Status status = ReadRegularFile(path, 1 << 20).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": " + why));
  }

  const std::string folder_;
};

TEST_F(RegularFileTest, IsReadWhole) {
  const std::string bytes("two\nlines\0and a zero", 20);
  std::ofstream(File("it"), std::ios::binary) << bytes;
  std::filesystem::create_symlink("it", File("link"));
  EXPECT_EQ(*ReadRegularFile(File("it"), bytes.size()), bytes);
  EXPECT_EQ(*ReadRegularFile(File("link"), 1 << 20), bytes);
  std::ofstream(File("empty"));
  EXPECT_EQ(*ReadRegularFile(File("empty"), 0), "");
}

// A FIFO that nobody writes to, and devices without an end: the call has to return.
TEST_F(RegularFileTest, NothingElseIsReadOrWaitedFor) {
  ASSERT_EQ(mkfifo(File("fifo").c_str(), 0600), 0);
  for (const std::string& path :
       {File("fifo"), std::string("/dev/full"), std::string("/dev/zero"), folder_}) {
    ExpectRefused(path, "is no regular file");
  }
  std::filesystem::create_symlink("/dev/zero", File("link"));
  ExpectRefused(File("link"), "is no regular file");
}

TEST_F(RegularFileTest, TheLimitIsNamed) {
  std::ofstream(File("it")) << "123456";
  const absl::Status status = ReadRegularFile(File("it"), 5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), File("it") + ": has 6 bytes; at most 5 are read");
}

TEST_F(RegularFileTest, WhatIsNotThereIsNotFound) {
  const absl::Status status = ReadRegularFile(File("none"), 5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(File("none")));
  std::ofstream(File("it"));
  ExpectRefused(File("it/below"), "Not a directory");
}

}  // namespace
}  // namespace lockstep::base
