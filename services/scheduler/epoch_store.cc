#include "services/scheduler/epoch_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"

namespace lockstep::scheduler {
namespace {

// A state takes a few kilobytes.
constexpr size_t kStateBytesMax = size_t{1} << 20;

absl::Status SystemError(const char* what, const std::string& path) {
  return absl::InternalError(absl::StrCat(
      "cannot ", what, " ", path, ": ", std::error_code(errno, std::generic_category()).message()));
}

absl::Status WriteSynced(const std::string& path, const std::string& text) {
  // What a crash left under this name goes first, and nothing else that lies there is written to.
  unlink(path.c_str());
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError("create", path);
  const ssize_t written = write(fd, text.data(), text.size());
  const bool ok = written == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const absl::Status status = ok ? absl::OkStatus() : SystemError("write", path);
  close(fd);
  return status;
}

absl::Status SyncFolder(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", folder);
  const absl::Status status = fsync(fd) == 0 ? absl::OkStatus() : SystemError("sync", folder);
  close(fd);
  return status;
}

absl::Status StateFileError(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("state_file: ", status.message()));
}

// The locked descriptor; closing it gives the lock back.
absl::StatusOr<int> LockBeside(const std::string& path) {
  const std::string lock_path = absl::StrCat(path, ".lock");
  const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError("create", lock_path);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return absl::FailedPreconditionError(
      absl::StrCat("state file ", path, " is in use by another scheduler"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EpochStore>> EpochStore::Open(const std::string& path) {
  // Before anything is made beside it: a save would put a file in the place of a device.
  const absl::Status usable = base::RegularFile::Open(path).status();
  if (!usable.ok() && !absl::IsNotFound(usable)) return StateFileError(usable);
  LOCKSTEP_ASSIGN_OR_RETURN(const int lock_fd, LockBeside(path));
  std::unique_ptr<EpochStore> store(new EpochStore(path, lock_fd));
  const absl::StatusOr<std::string> text = base::ReadRegularFile(path, kStateBytesMax);
  if (absl::IsNotFound(text.status())) return store;
  if (!text.ok()) return StateFileError(text.status());
  absl::StatusOr<PersistentState> state = DecodeState(*text);
  if (!state.ok()) {
    return absl::DataLossError(
        absl::StrCat("state file ", path, " is corrupted: ", state.status().message(),
                     ". Restore it, or stop all workers and remove it to start anew"));
  }
  store->state_ = *std::move(state);
  return store;
}

EpochStore::~EpochStore() { close(lock_fd_); }

// On a file system of several machines a lock can end while its holder, cut off, goes on.
absl::Status EpochStore::CheckStillOurs(const PersistentState& state) const {
  const absl::StatusOr<std::string> text = base::ReadRegularFile(path_, kStateBytesMax);
  if (!text.ok()) return absl::OkStatus();
  const absl::StatusOr<PersistentState> there = DecodeState(*text);
  if (!there.ok() || there->scheduler_epoch <= state.scheduler_epoch) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "state file ", path_, " is of scheduler epoch ", there->scheduler_epoch,
      ": another scheduler has taken over from this one, of epoch ", state.scheduler_epoch));
}

absl::Status EpochStore::Save(const PersistentState& state) {
  const std::string next = absl::StrCat(path_, ".next");
  const std::string text = EncodeState(state);
  if (text.size() > kStateBytesMax) {  // The next start would refuse it.
    return absl::InternalError(
        absl::StrCat("the state has ", text.size(), " bytes, at most ", kStateBytesMax));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckStillOurs(state));
  LOCKSTEP_RETURN_IF_ERROR(WriteSynced(next, text));
  if (std::rename(next.c_str(), path_.c_str()) != 0) return SystemError("replace", path_);
  LOCKSTEP_RETURN_IF_ERROR(SyncFolder(path_));
  state_ = state;
  return absl::OkStatus();
}

}  // namespace lockstep::scheduler
