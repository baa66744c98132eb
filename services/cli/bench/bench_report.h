#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "services/cli/flags.h"

namespace lockstep::cli {

// What every result file says beside its numbers: when, on what machine, of which commit, by which
// command.
nlohmann::ordered_json NewReport(const std::string& verb, const std::string& mode,
                                 const Arguments& arguments);

// The value that `fraction` of the samples do not exceed; 0 without samples.
double Quantile(std::vector<double> samples, double fraction);

}  // namespace lockstep::cli
