#include "common/log/sink.h"

#include <cstdio>

namespace lockstep::log {

void StderrSink::Write(std::string_view line) {
  base::MutexLock lock(&mutex_);
  // A log that cannot be written is no reason to stop serving.
  [[maybe_unused]] const size_t written = std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace lockstep::log
