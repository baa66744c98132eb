#pragma once

#include <vector>

#include "kernels/api/kernel_set.h"

namespace lockstep::kernels {

// Sine, cosine, exponential and logarithm in double, from +, -, *, / alone: a libm may change its
// last bit between versions, and the rope table is part of the contract. Errors below 2e-15
// relative for |x| < 2^20 (absolute for Sin64 and Cos64).
double Sin64(double x);
double Cos64(double x);
double Exp64(double x);
double Log64(double x);  // x positive and normal.

// Inverse frequencies [head_dim / 2] in fp32, in Hugging Face's order of operations:
// RN(1 / RN(theta ^ RN(2 i / head_dim))).
std::vector<float> RopeInverseFrequencies(double theta, int head_dim);

// [positions, head_dim] fp32: cosines of half the dims, then sines, each RN(RN(cos(angle)) *
// attention_scaling) with angle = RN(position * inverse_frequency).
std::vector<float> MakeRopeValues(const RopeParameters& parameters);

}  // namespace lockstep::kernels
