// A role that is told to end while it starts. Goal: it ends then and there, with the exit code of a
// drain, not when whatever it loads is loaded.
#include <signal.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/cluster/child_process.h"
#include "services/cli/files.h"
#include "services/cli/wait_until.h"
#include "tests/process/local_cluster.h"

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

INSTANTIATE_TEST_SUITE_P(Signals, EarlySignalTest, ::testing::Values(SIGTERM, SIGINT),
                         [](const auto& signal) {
                           return signal.param == SIGTERM ? "Terminate" : "Interrupt";
                         });

}  // namespace
}  // namespace lockstep::testing
