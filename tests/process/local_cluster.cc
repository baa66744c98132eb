#include "tests/process/local_cluster.h"

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gtest/gtest.h"
#include "services/cli/cluster/cluster_layout.h"
#include "services/cli/files.h"
#include "services/cli/wait_until.h"

namespace lockstep::testing {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);

void EndNow(cli::ChildProcess* process) {
  process->Signal(SIGKILL);
  cli::WaitUntil([process] { return process->Ended().has_value(); }, absl::Seconds(10));
}

}  // namespace

std::string MakeRunDirectory() {
  std::string path = ::testing::TempDir() + "lockstep-test-XXXXXX";
  return mkdtemp(path.data()) == nullptr ? "" : path;
}

Outcome RunProgram(const std::string& program, const std::vector<std::string>& words,
                   absl::Duration timeout) {
  const std::string directory = MakeRunDirectory();
  const std::string log = directory + "/output";
  auto process =
      cli::ChildProcess::Spawn({.program = program, .arguments = words, .log_path = log});
  if (!process.ok()) return {std::string(process.status().message()), ""};
  if (!cli::WaitUntil([&] { return process->Ended().has_value(); }, timeout)) {
    EndNow(&*process);
  }
  Outcome outcome{process->Ended().value_or("still running"), cli::ReadFile(log).value_or("")};
  std::filesystem::remove_all(directory);
  return outcome;
}

Outcome RunLockstep(const std::vector<std::string>& words, absl::Duration timeout) {
  return RunProgram(LOCKSTEP_BINARY, words, timeout);
}

Outcome RunLockstepUnheard(const std::vector<std::string>& words) {
  std::vector<std::string> all = {"-c", R"(exec "$0" "$@" >/dev/full)", LOCKSTEP_BINARY};
  all.insert(all.end(), words.begin(), words.end());
  return RunProgram("/bin/sh", all);
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(
    const std::vector<std::string>& flags) {
  const std::string run_dir = MakeRunDirectory();
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(run_dir));
  std::vector<std::string> words = {"up", "--port=0", absl::StrCat("--run_dir=", run_dir)};
  words.insert(words.end(), flags.begin(), flags.end());
  LOCKSTEP_ASSIGN_OR_RETURN(
      cli::ChildProcess up,
      cli::ChildProcess::Spawn(
          {.program = LOCKSTEP_BINARY, .arguments = words, .log_path = run_dir + "/up.log"}));
  cluster->up_ = std::make_unique<cli::ChildProcess>(std::move(up));
  const auto address = [&] { return cli::ReadFile(run_dir + "/gateway.address").value_or(""); };
  cli::WaitUntil([&] { return !address().empty() || cluster->up_->Ended().has_value(); },
                 kStartTimeout);
  cluster->target_ = std::string(absl::StripAsciiWhitespace(address()));
  if (cluster->target_.empty()) {
    return absl::UnavailableError(absl::StrCat("no cluster: ", cluster->Output()));
  }
  cluster->client_ = std::make_unique<client::RolloutClient>(
      client::RolloutClient::Options{.target = cluster->target_, .timeout = absl::Minutes(5)});
  return cluster;
}

LocalCluster::~LocalCluster() {
  // Its children die with it; how it stops in order is a test of its own.
  if (up_ != nullptr) EndNow(up_.get());
  std::filesystem::remove_all(run_dir_);
}

std::string LocalCluster::Output() const {
  return cli::ReadFile(run_dir_ + "/up.log").value_or("");
}

pid_t LocalCluster::PidOf(const std::string& member) const {
  int pid = -1;
  const auto text = cli::ReadFile(cli::PidPath(run_dir_, member));
  return text.ok() && absl::SimpleAtoi(*text, &pid) ? pid : -1;
}

void LocalCluster::Signal(const std::string& member, int signal) const {
  const pid_t pid = PidOf(member);
  ASSERT_GT(pid, 1) << member;
  kill(pid, signal);
}

absl::StatusOr<std::string> LocalCluster::WaitForEnd(absl::Duration timeout) {
  if (cli::WaitUntil([this] { return up_->Ended().has_value(); }, timeout)) return *up_->Ended();
  return absl::DeadlineExceededError("lockstep up still runs");
}

uint64_t LocalCluster::IncarnationOf(const std::string& worker) {
  const auto info = client_->GetServerInfo();
  if (!info.ok()) return 0;
  for (const v1::WorkerInfo& entry : info->workers()) {
    if (entry.worker_id() == worker) return entry.incarnation();
  }
  return 0;
}

}  // namespace lockstep::testing
