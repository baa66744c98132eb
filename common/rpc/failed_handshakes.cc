#include "common/rpc/failed_handshakes.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpc/support/log.h"

namespace lockstep::rpc {
namespace {

// The log belongs to the process, and so does what is read from it.
std::atomic<int64_t> failed_handshakes = 0;

absl::string_view NameOf(absl::string_view path) {
  return path.substr(path.rfind('/') + 1);  // All of it where there is no slash.
}

void OnLine(gpr_log_func_args* line) {
  const absl::string_view file = NameOf(line->file);
  if (file == "ssl_transport_security.cc" &&
      absl::StartsWith(line->message, "Handshake failed with fatal error")) {
    failed_handshakes.fetch_add(1, std::memory_order_relaxed);
  }
  const std::string text =
      absl::StrCat(absl::string_view(gpr_log_severity_string(line->severity), 1),
                   absl::FormatTime("%m%d %H:%M:%E9S", absl::Now(), absl::LocalTimeZone()), " ",
                   gettid(), " ", file, ":", line->line, "] ", line->message, "\n");
  std::fputs(text.c_str(), stderr);
}

}  // namespace

void CountFailedHandshakes() { gpr_set_log_function(OnLine); }

int64_t FailedHandshakes() { return failed_handshakes.load(std::memory_order_relaxed); }

}  // namespace lockstep::rpc
