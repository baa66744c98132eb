#include "services/cli/bench/bench_report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/cli/files.h"
#include "services/cli/json_text.h"

namespace lockstep::cli {
namespace {

// First line that a command prints, empty when it fails.
std::string FirstLine(const char* command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  char line[256] = "";
  if (pipe == nullptr || std::fgets(line, sizeof(line), pipe.get()) == nullptr) return "";
  return std::string(absl::StripSuffix(line, "\n"));
}

std::string ProcessorName() {
  const absl::StatusOr<std::string> text = ReadFile("/proc/cpuinfo");
  if (!text.ok()) return "unknown";
  const size_t name = text->find("model name");
  if (name == std::string::npos) return "unknown";
  const size_t begin = text->find(": ", name) + 2;
  return text->substr(begin, text->find('\n', begin) - begin);
}

}  // namespace

nlohmann::ordered_json NewReport(const std::string& verb, const std::string& mode,
                                 const Arguments& arguments) {
  utsname system = {};
  uname(&system);
  const std::string commit = FirstLine("git rev-parse HEAD 2>/dev/null");
  const bool changed =
      !FirstLine("git status --porcelain --untracked-files=no 2>/dev/null").empty();
  nlohmann::ordered_json report;
  report[verb] = mode;
  report["time"] = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
  report["command"] = absl::StrCat("lockstep ", verb, " ", absl::StrJoin(arguments, " "));
  report["commit"] = commit.empty() ? "unknown" : commit + (changed ? " with changes" : "");
  report["machine"] = {{"processor", ProcessorName()},
                       {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                       {"system", absl::StrCat(system.sysname, " ", system.release)}};
  return report;
}

absl::Status WriteReport(const std::string& path, const nlohmann::ordered_json& report) {
  return WriteFile(path, JsonText(report, 1) + "\n");
}

double Quantile(std::vector<double> samples, double fraction) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const auto last = static_cast<double>(samples.size() - 1);
  return samples[static_cast<size_t>(fraction * last + 0.5)];
}

}  // namespace lockstep::cli
