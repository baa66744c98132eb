#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/scheduler/state_store.h"

namespace lockstep::scheduler {

// Keeps the state in one small text file. A save writes a new file beside it, syncs it, renames it
// over the old one and syncs the folder, so that a crash leaves the old or the new state. The file
// is locked while the store lives: two schedulers on one file would both believe in their epoch.
// Not thread-safe.
class EpochStore final : public StateStore {
 public:
  // DATA_LOSS when the file is there but is not what was written: an epoch that may be too low
  // would let old tickets live, so a person has to decide. FAILED_PRECONDITION when another process
  // has it. INVALID_ARGUMENT when it is no regular file, or larger than any state.
  static absl::StatusOr<std::unique_ptr<EpochStore>> Open(const std::string& path);
  ~EpochStore() override;
  EpochStore(const EpochStore&) = delete;
  EpochStore& operator=(const EpochStore&) = delete;

  std::optional<PersistentState> Load() const override { return state_; }
  absl::Status Save(const PersistentState& state) override;

 private:
  EpochStore(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  // FAILED_PRECONDITION when a later scheduler has saved since.
  absl::Status CheckStillOurs(const PersistentState& state) const;

  const std::string path_;
  const int lock_fd_;
  std::optional<PersistentState> state_;
};

// The file's text, and back. Decode names the line that is wrong.
std::string EncodeState(const PersistentState& state);
absl::StatusOr<PersistentState> DecodeState(const std::string& text);

}  // namespace lockstep::scheduler
