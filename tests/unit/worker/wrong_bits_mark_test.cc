#include "services/worker/wrong_bits_mark.h"

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;

TEST(WrongBitsMarkTest, StopsTheWorkerThatLeftItAndNoOther) {
  const std::string certificates = ::testing::TempDir() + "marked_certificates";
  const std::string own = WrongBitsMarkPath(certificates, "worker-0");
  const std::string other = WrongBitsMarkPath(certificates, "worker-1");
  std::filesystem::remove(own);
  EXPECT_TRUE(CheckNoWrongBitsMark(own).ok());

  ASSERT_TRUE(LeaveWrongBitsMark(own, absl::DataLossError("audit: layer 7, 2 rows")).ok());
  const absl::Status refused = CheckNoWrongBitsMark(own);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("(audit: layer 7, 2 rows)"));
  EXPECT_THAT(refused.message(), HasSubstr(own));
  EXPECT_TRUE(CheckNoWrongBitsMark(other).ok());

  std::filesystem::remove(own);
  EXPECT_TRUE(CheckNoWrongBitsMark(own).ok());
}

TEST(WrongBitsMarkTest, NeedsAPlace) {
  EXPECT_EQ(WrongBitsMarkPath("", "worker-0"), "");
  EXPECT_TRUE(LeaveWrongBitsMark("", absl::DataLossError("x")).ok());
  EXPECT_TRUE(CheckNoWrongBitsMark("").ok());
  EXPECT_THAT(LeaveWrongBitsMark("/no/such/folder/mark", absl::DataLossError("x")).message(),
              HasSubstr("/no/such/folder/mark"));
  // The worker's name stays one name.
  EXPECT_EQ(WrongBitsMarkPath("/c/file", "a/../b"), "/c/file.a_.._b.wrong_bits");
}

// What is there without being readable says enough.
TEST(WrongBitsMarkTest, AnythingOfThatNameStopsTheWorker) {
  const std::string folder = ::testing::TempDir() + "marked.worker-0.wrong_bits";
  std::filesystem::create_directory(folder);
  EXPECT_EQ(CheckNoWrongBitsMark(folder).code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(folder);
}

}  // namespace
}  // namespace lockstep::worker
