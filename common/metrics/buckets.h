#pragma once

#include <string>
#include <vector>

namespace lockstep::metrics {

// Upper bounds in seconds, 1-2-5 steps. Whole requests and queues: 1 ms to 500 s.
std::vector<double> RequestSecondsBuckets();
// Time to the first token, gaps between tokens, RPCs inside the cluster: 100 us to 50 s.
std::vector<double> LatencySecondsBuckets();
// Engine steps and their parts: 10 us to 5 s.
std::vector<double> StepSecondsBuckets();
// Counts and sizes: powers of two from 1 to 2^`exponent_max`.
std::vector<double> PowerOfTwoBuckets(int exponent_max);

// Label values for a By<…, absl::StatusCode>: "ok", "cancelled", … in the order of the codes.
std::vector<std::string> StatusCodeLabels();

}  // namespace lockstep::metrics
