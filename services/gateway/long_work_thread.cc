#include "services/gateway/long_work_thread.h"

#include <sys/resource.h>

#include <utility>

namespace lockstep::gateway {
namespace {

// A tenth of the share of a thread that serves calls, where both want the same core.
constexpr int kNice = 10;

}  // namespace

LongWorkThread::LongWorkThread(metrics::Counter* posted)
    : posted_(posted), thread_([this] { Run(); }) {}

LongWorkThread::~LongWorkThread() {
  {
    std::deque<Work> dropped;
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
    changed_.NotifyAll();
  }
  thread_.join();
}

void LongWorkThread::Post(Work work) {
  posted_->Increment();
  base::MutexLock lock(&mutex_);
  if (stopping_) return;
  waiting_.push_back(std::move(work));
  changed_.NotifyAll();
}

void LongWorkThread::Run() {
  // Of this thread alone, on Linux. Where it is not allowed, long work only takes more from others.
  (void)setpriority(PRIO_PROCESS, 0, kNice);
  while (true) {
    Work work;
    {
      base::MutexLock lock(&mutex_);
      while (!stopping_ && waiting_.empty()) changed_.Wait(&mutex_);
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace lockstep::gateway
