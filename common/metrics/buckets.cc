#include "common/metrics/buckets.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"

namespace lockstep::metrics {
namespace {

// 1, 2 and 5 times every power of ten from 10^first to 10^last.
std::vector<double> Decades(int first, int last) {
  std::vector<double> bounds;
  for (int exponent = first; exponent <= last; ++exponent) {
    // A division gives the double that is nearest to 0.001 and prints as such; a product does not.
    for (const double step : {1.0, 2.0, 5.0}) {
      bounds.push_back(exponent < 0 ? step / std::pow(10.0, -exponent)
                                    : step * std::pow(10.0, exponent));
    }
  }
  return bounds;
}

}  // namespace

std::vector<double> RequestSecondsBuckets() { return Decades(-3, 2); }

std::vector<double> LatencySecondsBuckets() { return Decades(-4, 1); }

std::vector<double> StepSecondsBuckets() { return Decades(-5, 0); }

std::vector<double> PowerOfTwoBuckets(int exponent_max) {
  std::vector<double> bounds;
  for (int exponent = 0; exponent <= exponent_max; ++exponent) {
    bounds.push_back(std::ldexp(1.0, exponent));
  }
  return bounds;
}

std::vector<std::string> StatusCodeLabels() {
  std::vector<std::string> labels;
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    labels.push_back(
        absl::AsciiStrToLower(absl::StatusCodeToString(static_cast<absl::StatusCode>(code))));
  }
  return labels;
}

}  // namespace lockstep::metrics
