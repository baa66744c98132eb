#pragma once

#include <optional>
#include <string>

#include "lockstep/v1/rollout.pb.h"

namespace lockstep::client {

// Digest of everything that the promise covers: ids, every logprob array of generated and prompt
// positions, text, incomplete tail, finish reason and matched stop. Not the sample's number, its
// cost or its receipt.
std::string BitsOf(const v1::Sample& sample);

// Where `actual` leaves `expected` first, for people: position, both ids, both logprobs with their
// bits; or the field that differs. Nothing when all bits are equal.
std::optional<std::string> FirstDifference(const v1::Sample& expected, const v1::Sample& actual);

// The same for arrays of f32: "position 3: -0.5 (bf000000) and …". Nothing when equal.
std::optional<std::string> FirstFloatDifference(const std::string& expected,
                                                const std::string& actual);

}  // namespace lockstep::client
