#include "common/rpc/port_check.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/echo_fixture.h"

namespace lockstep::rpc {
namespace {

using ::testing::HasSubstr;

class PortCheckTest : public EchoFixture {
 protected:
  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
};

TEST_F(PortCheckTest, APortInUseIsSeenBeforeAServerWantsIt) {
  const absl::Status status = CheckPortIsFree(address());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address()));
  for (const char* free : {"127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0", "localhost:0"}) {
    EXPECT_TRUE(CheckPortIsFree(free).ok()) << free;
  }
  EXPECT_EQ(CheckPortIsFree("nowhere").code(), absl::StatusCode::kInvalidArgument);
  const std::string old_address = address();
  server_->Shutdown();
  server_.reset();
  EXPECT_TRUE(CheckPortIsFree(old_address).ok());
  absl::StatusOr<std::unique_ptr<Server>> again =
      Server::Start({.address = old_address}, {&service_});
  ASSERT_TRUE(again.ok()) << again.status();
  server_ = *std::move(again);
}

}  // namespace
}  // namespace lockstep::rpc
