#pragma once

#include <string>

namespace lockstep::testing {

// GET http://127.0.0.1:<port>/metrics; empty when nobody answers.
std::string FetchMetrics(int port);

// Sum of all samples of the metric `name` (exact name, any labels) in Prometheus' text format.
double SumMetric(const std::string& text, const std::string& name);

}  // namespace lockstep::testing
