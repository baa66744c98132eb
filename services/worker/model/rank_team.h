#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/base/mutex.h"

namespace lockstep::worker {

// A thread for each rank. What belongs to a rank is made, used and destroyed on its thread, because
// a device is current per thread. One thread at a time may call Run.
class RankTeam {
 public:
  explicit RankTeam(int ranks);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  int ranks() const { return static_cast<int>(threads_.size()); }

  // Calls task(rank) on every rank's thread and returns after all have returned.
  void Run(absl::FunctionRef<void(int rank)> task);

 private:
  void Serve(int rank);

  base::Mutex mutex_;
  base::CondVar changed_;
  const absl::FunctionRef<void(int)>* task_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t round_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::worker
