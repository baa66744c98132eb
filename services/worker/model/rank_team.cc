#include "services/worker/model/rank_team.h"

namespace lockstep::worker {

RankTeam::RankTeam(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    threads_.emplace_back([this, rank] { Serve(rank); });
  }
}

RankTeam::~RankTeam() {
  {
    base::MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void RankTeam::Run(absl::FunctionRef<void(int rank)> task) {
  base::MutexLock lock(&mutex_);
  task_ = &task;
  running_ = ranks();
  ++round_;
  changed_.NotifyAll();
  while (running_ > 0) changed_.Wait(&mutex_);
}

void RankTeam::Serve(int rank) {
  uint64_t seen = 0;
  while (true) {
    const absl::FunctionRef<void(int)>* task = nullptr;
    {
      base::MutexLock lock(&mutex_);
      while (round_ == seen && !ending_) changed_.Wait(&mutex_);
      if (ending_) return;
      seen = round_;
      task = task_;
    }
    (*task)(rank);
    base::MutexLock lock(&mutex_);
    if (--running_ == 0) changed_.NotifyAll();
  }
}

}  // namespace lockstep::worker
