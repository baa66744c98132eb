#include "services/gateway/text_thread.h"

#include <utility>

namespace lockstep::gateway {

TextThread::TextThread() : thread_([this] { Run(); }) {}

TextThread::~TextThread() {
  {
    std::deque<Work> dropped;
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
    changed_.NotifyAll();
  }
  thread_.join();
}

void TextThread::Post(Work work) {
  base::MutexLock lock(&mutex_);
  if (stopping_) return;
  waiting_.push_back(std::move(work));
  changed_.NotifyAll();
}

void TextThread::Run() {
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
