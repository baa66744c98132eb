#pragma once

#include <cmath>
#include <cstddef>

// Bounds on rounding errors, computed from what was summed. Never a loose constant.
namespace lockstep::testing {

// Unit roundoff of fp32.
inline constexpr double kUnitRoundoff = 0x1p-24;

// gamma_n = n u / (1 - n u): the relative error that n roundings in a row can build up (Higham,
// Accuracy and Stability of Numerical Algorithms, lemma 3.1).
inline double Gamma(size_t roundings) {
  const double nu = static_cast<double>(roundings) * kUnitRoundoff;
  return nu / (1 - nu);
}

// Bound for a sum of products in any order, where `magnitude` = sum of |x_i * w_i| plus the
// magnitudes of what is added afterwards, and each term passes at most `roundings` roundings.
// Results below the normal range lose up to half of the smallest subnormal at each step.
inline double SumTolerance(size_t roundings, double magnitude) {
  return Gamma(roundings) * magnitude + static_cast<double>(roundings) * 0x1p-150;
}

// Distance of `actual` from `exact` in units in the last place of fp32 at `exact`.
inline double UlpError(float actual, double exact) {
  const int exponent = std::max(-126, std::ilogb(exact));
  return std::abs(static_cast<double>(actual) - exact) / std::ldexp(1.0, exponent - 23);
}

}  // namespace lockstep::testing
