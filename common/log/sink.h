#pragma once

#include <string_view>

#include "common/base/mutex.h"

namespace lockstep::log {

// Where finished lines go. Implementations are thread-safe.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // `line` is one record and ends with a newline.
  virtual void Write(std::string_view line) = 0;
};

// Standard error; lines of several threads never mix.
class StderrSink final : public LogSink {
 public:
  void Write(std::string_view line) override;

 private:
  base::Mutex mutex_;
};

}  // namespace lockstep::log
