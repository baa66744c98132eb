#pragma once

#include <span>
#include <vector>

// The row ops of the GPU contract in plain host code, written from kernels/README.md. Values are
// bf16, kept as fp32.
namespace lockstep::testing {

// RNbf16 of a number.
float RoundedToBf16(float x);

std::vector<float> RmsNormOfRow(std::span<const float> x, std::span<const float> weight,
                                float epsilon);

// RNbf16(residual + RNbf16(T(partials) + bias)) for each element: partials [segments][width]; a
// bias may be missing.
std::vector<float> ResidualSumOfRow(std::span<const float> residual,
                                    std::span<const float> partials, std::span<const float> bias);

// A head turned by the angles of its position: cosines of half the dims, then sines.
std::vector<float> RotatedHead(std::span<const float> x, std::span<const float> table);

}  // namespace lockstep::testing
