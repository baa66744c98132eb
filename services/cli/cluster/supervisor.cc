#include "services/cli/cluster/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/health_client.h"
#include "services/cli/cluster/local_ports.h"
#include "services/cli/files.h"
#include "services/client/rollout_client.h"

namespace lockstep::cli {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);
// Pauses before a child that died is started again: the first is short, so that a killed worker is
// back at once; a child that lived for a while begins anew.
constexpr absl::Duration kPauseFirst = absl::Milliseconds(100);
constexpr absl::Duration kPauseLast = absl::Seconds(10);
constexpr absl::Duration kStableAfter = absl::Seconds(10);
// Ctrl-C reaches the whole terminal, and a script around `up` sends its own signal on the way out:
// what comes this soon is not a second wish.
constexpr absl::Duration kSameWish = absl::Seconds(1);
constexpr size_t kLogTailBytes = 1500;

absl::StatusOr<int> LockRunDir(const std::string& run_dir) {
  const std::string path = run_dir + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return absl::FailedPreconditionError(
      absl::StrCat(run_dir, " belongs to a cluster that runs; stop it or give another --run_dir"));
}

bool IsWorker(const Member& member) { return member.role == "worker"; }

}  // namespace

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Create(ClusterLayout layout,
                                                               rpc::SignalWaiter* signals) {
  if (const absl::Status status = CheckPortsFree(layout.ports()); !status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        status.message(), ". Another cluster runs there? Stop it or give another --port"));
  }
  std::error_code error;
  std::filesystem::create_directories(layout.run_dir, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(layout.run_dir, ": ", error.message()));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int lock_fd, LockRunDir(layout.run_dir));
  auto supervisor = std::make_unique<Supervisor>(Private(), std::move(layout), signals, lock_fd);
  for (const Member& member : supervisor->layout_.members) {
    LOCKSTEP_RETURN_IF_ERROR(WriteFile(
        absl::StrCat(supervisor->layout_.run_dir, "/", member.name, ".textproto"), member.config));
    std::filesystem::remove(supervisor->LogPath(member), error);
  }
  return supervisor;
}

Supervisor::Supervisor(Private, ClusterLayout layout, rpc::SignalWaiter* signals, int lock_fd)
    : layout_(std::move(layout)), signals_(signals), lock_fd_(lock_fd) {}

Supervisor::~Supervisor() {
  Stop([](const Member&) { return true; }, absl::ZeroDuration());
  close(lock_fd_);
}

std::string Supervisor::LogPath(const Member& member) const {
  return absl::StrCat(layout_.run_dir, "/", member.name, ".log");
}

std::string Supervisor::LogTail(const Member& member) const {
  const absl::StatusOr<std::string> log = ReadFile(LogPath(member));
  if (!log.ok() || log->empty()) return "its log is empty";
  const size_t begin = log->size() > kLogTailBytes ? log->size() - kLogTailBytes : 0;
  return absl::StrCat("end of ", LogPath(member), ":\n", log->substr(begin));
}

absl::Status Supervisor::Start(const Member& member) {
  Child* child = &children_[member.name];
  LOCKSTEP_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::Spawn({.program = "/proc/self/exe",
                           .arguments = {member.role, absl::StrCat("--config=", layout_.run_dir,
                                                                   "/", member.name, ".textproto")},
                           .log_path = LogPath(member)}));
  child->process = std::make_unique<ChildProcess>(process);
  child->started = absl::Now();
  child->restart_at = absl::InfiniteFuture();
  return WriteFile(PidPath(layout_.run_dir, member.name), absl::StrCat(process.pid(), "\n"));
}

absl::Status Supervisor::StartAll(absl::Time deadline) {
  for (const Member& member : layout_.members) LOCKSTEP_RETURN_IF_ERROR(Start(member));
  return WaitReady(deadline);
}

absl::Status Supervisor::WaitReady(absl::Time deadline) {
  client::RolloutClient cluster(
      {.target = layout_.gateway().address(), .timeout = absl::Seconds(2)});
  const auto worker_count = std::count_if(layout_.members.begin(), layout_.members.end(), IsWorker);
  size_t ready = 0;
  std::string missing = "not started";
  while (absl::Now() < deadline) {
    for (const Member& member : layout_.members) {
      if (const auto ended = children_[member.name].process->Ended()) {
        return absl::UnavailableError(absl::StrCat(member.name, " ended with ", *ended,
                                                   " before the cluster was ready; ",
                                                   LogTail(member)));
      }
    }
    // Members become ready in any order; each is asked until it is.
    while (ready < layout_.members.size()) {
      const Member& member = layout_.members[ready];
      const auto healthy =
          rpc::CheckHealth(rpc::MakeChannel(member.address()), "ready", absl::Seconds(1));
      if (!healthy.ok() || !*healthy) {
        missing = member.name;
        break;
      }
      ++ready;
    }
    if (ready == layout_.members.size()) {
      missing = "the gateway's view of all workers";
      const auto info = cluster.GetServerInfo();
      if (info.ok() && info->workers_size() >= worker_count) return absl::OkStatus();
    }
    if (signals_->Wait(kPoll).has_value()) return absl::AbortedError("stopped by a signal");
  }
  const Member& member = layout_.members[std::min(ready, layout_.members.size() - 1)];
  return absl::UnavailableError(
      absl::StrCat("not ready in time: ", missing, "; ", LogTail(member)));
}

void Supervisor::Supervise() {
  while (!signals_->Wait(kPoll).has_value()) {
    for (const Member& member : layout_.members) Restart(member);
  }
}

void Supervisor::Restart(const Member& member) {
  Child* child = &children_[member.name];
  const absl::Time now = absl::Now();
  if (child->restart_at == absl::InfiniteFuture()) {
    const auto ended = child->process->Ended();
    if (!ended.has_value()) return;
    const bool was_stable = now - child->started > kStableAfter;
    child->pause = was_stable ? kPauseFirst : std::clamp(2 * child->pause, kPauseFirst, kPauseLast);
    child->restart_at = now + child->pause;
    std::printf("%s ended with %s; it starts again in %s\n", member.name.c_str(), ended->c_str(),
                absl::FormatDuration(child->pause).c_str());
    std::fflush(stdout);
  }
  if (now < child->restart_at) return;
  if (const absl::Status status = Start(member); !status.ok()) {
    child->restart_at = now + kPauseLast;
    std::printf("%s: %s\n", member.name.c_str(), std::string(status.message()).c_str());
  }
}

void Supervisor::StopAll(absl::Duration patience) {
  hurry_from_ = absl::Now() + kSameWish;
  const auto has_role = [](const char* role) {
    return [role](const Member& member) { return member.role == role; };
  };
  for (const char* role : {"gateway", "router", "worker", "scheduler"}) {
    Stop(has_role(role), patience);
  }
}

void Supervisor::Stop(const std::function<bool(const Member&)>& chosen, absl::Duration patience) {
  std::vector<std::pair<std::string, ChildProcess*>> running;
  for (const Member& member : layout_.members) {
    const auto it = children_.find(member.name);
    if (it == children_.end() || it->second.process == nullptr || !chosen(member)) continue;
    running.push_back({member.name, it->second.process.get()});
    it->second.process->Signal(patience > absl::ZeroDuration() ? SIGTERM : SIGKILL);
  }
  const absl::Time deadline = absl::Now() + patience;
  bool killed = patience == absl::ZeroDuration();
  while (true) {
    std::erase_if(running, [this](const auto& entry) {
      if (!entry.second->Ended().has_value()) return false;
      std::remove(PidPath(layout_.run_dir, entry.first).c_str());
      return true;
    });
    if (running.empty()) return;
    if (signals_->Wait(kPoll).has_value() && absl::Now() >= hurry_from_) hurry_ = true;
    if (killed || (!hurry_ && absl::Now() < deadline)) continue;
    killed = true;
    for (const auto& [name, process] : running) {
      std::printf("%s did not end in time and is killed\n", name.c_str());
      process->Signal(SIGKILL);
    }
  }
}

}  // namespace lockstep::cli
