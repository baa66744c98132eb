#include "tests/support/prometheus_text.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "httplib.h"

namespace lockstep::testing {

std::string FetchMetrics(int port) {
  httplib::Client client("127.0.0.1", port);
  const httplib::Result result = client.Get("/metrics");
  return result && result->status == 200 ? result->body : "";
}

double SumMetric(const std::string& text, const std::string& name) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.substr(0, name.size()) != name || line.size() == name.size()) continue;
    const char next = line[name.size()];
    if (next != ' ' && next != '{') continue;
    double value = 0;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) sum += value;
  }
  return sum;
}

}  // namespace lockstep::testing
