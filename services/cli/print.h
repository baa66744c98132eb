#pragma once

#include <string>

#include "lockstep/v1/rollout.pb.h"

// What verbs show of answers, on standard output.
namespace lockstep::cli {

// "1 2 3".
std::string IdsText(const std::string& bytes);
// "-0.5 -1.25", nine digits each: enough to tell any two floats apart.
std::string FloatsText(const std::string& bytes);

// Text, ids, logprobs, why it ended, what it cost, receipt.
void PrintSample(const v1::Sample& sample);
// Prompt and all samples.
void PrintResponse(const v1::GenerateResponse& response);

}  // namespace lockstep::cli
