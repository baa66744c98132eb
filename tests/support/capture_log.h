#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "common/log/sink.h"

namespace lockstep::log {

// Keeps what was logged for a test to read. Thread-safe.
class CaptureSink final : public LogSink {
 public:
  void Write(std::string_view line) override {
    base::MutexLock lock(&mutex_);
    lines_.emplace_back(line);
  }
  std::vector<std::string> lines() const {
    base::MutexLock lock(&mutex_);
    return lines_;
  }

 private:
  mutable base::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::log
