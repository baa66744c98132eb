// A role that is told to end while it starts, or that cannot start. Goal: it ends then and there,
// not when whatever it loads is loaded; with the exit code of a drain, if it was told to.
#include <signal.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/cluster/child_process.h"
#include "services/cli/files.h"
#include "services/cli/wait_until.h"
#include "tests/process/local_cluster.h"
#include "tests/support/tcp_proxy.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(120);
// Takes many seconds to make on one thread.
constexpr char kConfig[] = R"(
    server { listen: "127.0.0.1:0" cluster_id: "early" plaintext: true }
    worker_id: "worker-0" scheduler: "127.0.0.1:1" model: "random:qwen3-0.6b" kv_bytes: 268435456
    threads: 1)";

class EarlySignalTest : public ::testing::TestWithParam<int> {
 protected:
  ~EarlySignalTest() override { std::filesystem::remove_all(directory_); }
  std::string Log() const { return cli::ReadFile(log()).value_or(""); }
  std::string log() const { return directory_ + "/log"; }

  const std::string directory_ = MakeRunDirectory();
};

TEST_P(EarlySignalTest, EndsAWorkerThatLoadsItsModel) {
  const std::string config = directory_ + "/worker.textproto";
  ASSERT_TRUE(cli::WriteFile(config, kConfig).ok());
  auto worker =
      cli::ChildProcess::Spawn({.program = LOCKSTEP_BINARY,
                                .arguments = {"worker", absl::StrCat("--config=", config)},
                                .log_path = log()});
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_TRUE(cli::WaitUntil([&] { return Log().find("loading") != std::string::npos; }, kPatience,
                             absl::Milliseconds(1)));
  worker->Signal(GetParam());
  EXPECT_TRUE(cli::WaitUntil([&] { return worker->Ended().has_value(); }, kPatience));
  EXPECT_EQ(worker->Ended(), "exit code 0");
  EXPECT_THAT(Log(), AllOf(HasSubstr("told to end while nothing is served"),
                           Not(HasSubstr("loaded")), Not(HasSubstr("draining"))));
  worker->Signal(SIGKILL);
}

TEST(EarlyRefusalTest, EndsAWorkerWhosePortIsTakenBeforeItLoadsItsModel) {
  const auto other = TcpProxy::Start(0);
  ASSERT_TRUE(other.ok()) << other.status();
  const std::string directory = MakeRunDirectory();
  const std::string config = directory + "/worker.textproto";
  const std::string taken = absl::StrCat("127.0.0.1:", (*other)->port());
  ASSERT_TRUE(cli::WriteFile(config, absl::StrReplaceAll(kConfig, {{"127.0.0.1:0", taken}})).ok());
  const Outcome outcome = RunLockstep({"worker", absl::StrCat("--config=", config)}, kPatience);
  EXPECT_EQ(outcome.ended, "exit code 1");
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(taken + ": the port is in use"), Not(HasSubstr("loading"))));
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Signals, EarlySignalTest, ::testing::Values(SIGTERM, SIGINT),
                         [](const auto& signal) {
                           return signal.param == SIGTERM ? "Terminate" : "Interrupt";
                         });

}  // namespace
}  // namespace lockstep::testing
