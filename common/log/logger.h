#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/log/field.h"
#include "common/log/sink.h"

namespace lockstep::log {

enum class Level { kDebug, kInfo, kWarning, kError };
enum class Format { kText, kJson };

// Writes one line per event, as text
//   2026-01-31T10:00:00.123456Z warning router lease_lost trace_id=a1 worker=w3 left_seconds=0.5
// or as a JSON object with the same names (ts, level, service, event, then the fields). Values are
// escaped: whatever a peer puts into one, an event stays one line, and JSON stays valid UTF-8.
//
//   logger.Warning("lease_lost", {{"worker", worker_id}, {"left_seconds", left}});
//
// Passed on by constructors, never global. A small immutable value: copy it freely. Thread-safe.
class Logger {
 public:
  struct Options {
    std::string service;
    Format format = Format::kText;
    Level level_min = Level::kInfo;
  };
  // Clock and sink outlive the logger and its copies.
  Logger(Options options, const base::Clock* clock, LogSink* sink);

  // The logger of one request. `trace_id` is what its client sent, or empty; then its lines carry
  // the request id in its place.
  Logger ForRequest(std::string_view trace_id, std::string_view request_id) const;

  void Debug(std::string_view event, std::initializer_list<Field> fields = {}) const {
    Log(Level::kDebug, event, fields);
  }
  void Info(std::string_view event, std::initializer_list<Field> fields = {}) const {
    Log(Level::kInfo, event, fields);
  }
  void Warning(std::string_view event, std::initializer_list<Field> fields = {}) const {
    Log(Level::kWarning, event, fields);
  }
  void Error(std::string_view event, std::initializer_list<Field> fields = {}) const {
    Log(Level::kError, event, fields);
  }
  // An ordinary step in the life of a request. Info if its client sent a trace id, and so asked to
  // see where it goes; debug for all others, of which there may be thousands a second.
  void Step(std::string_view event, std::initializer_list<Field> fields = {}) const {
    Log(step_level_, event, fields);
  }
  void Log(Level level, std::string_view event, std::initializer_list<Field> fields) const;

  // Whether a line of `level` is written, to skip work that only a log line needs.
  bool enabled(Level level) const { return level >= options_.level_min; }

 private:
  Options options_;
  std::string trace_id_;
  Level step_level_ = Level::kDebug;
  const base::Clock* clock_;
  LogSink* sink_;
};

}  // namespace lockstep::log
