#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "services/cli/flags.h"

namespace lockstep::cli {

// What every result file says beside its numbers: when, on what machine, of which commit, by which
// command.
nlohmann::ordered_json NewReport(const std::string& verb, const std::string& mode,
                                 const Arguments& arguments);

// Writes a report to a file.
absl::Status WriteReport(const std::string& path, const nlohmann::ordered_json& report);

// The value that `fraction` of the samples do not exceed; 0 without samples.
double Quantile(std::vector<double> samples, double fraction);

}  // namespace lockstep::cli
