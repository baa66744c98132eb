#pragma once

#include <cstdint>

// Coefficients of the contract's functions, shared by all backends so that each computes the same
// bits. `kC3` belongs to the cube. Weighted minimax fits on the interval named beside each, rounded
// to fp32; kernels/README.md has the order of operations.
namespace lockstep::kernels::order {

inline constexpr float kLog2E = 0x1.715476p+0f;

// Adding 1.5 * 2^23 to |x| < 2^22 leaves the nearest integer of x in the low bits, ties to even.
inline constexpr float kRounder = 0x1.8p23f;

// 2^f on [-1/2, 1/2]; the constant term is 1.
struct Exp2Polynomial {
  static constexpr float kC1 = 0x1.62e43p-1f;
  static constexpr float kC2 = 0x1.ebfbdcp-3f;
  static constexpr float kC3 = 0x1.c6aee8p-5f;
  static constexpr float kC4 = 0x1.3b2d4ep-7f;
  static constexpr float kC5 = 0x1.5f3e56p-10f;
  static constexpr float kC6 = 0x1.41fbb6p-13f;
  static constexpr float kUnderflow = -126.0f;  // Exactly 0 below.
};

// log(1 + f) = f - f^2 / 2 + f^3 (kC3 + kC4 f + ...) on [sqrt(1/2) - 1, sqrt(2) - 1].
struct LogPolynomial {
  static constexpr float kC3 = 0x1.555548p-2f;
  static constexpr float kC4 = -0x1.000006p-2f;
  static constexpr float kC5 = 0x1.99a4b6p-3f;
  static constexpr float kC6 = -0x1.555c4cp-3f;
  static constexpr float kC7 = 0x1.233762p-3f;
  static constexpr float kC8 = -0x1.fc2234p-4f;
  static constexpr float kC9 = 0x1.e6f0fp-4f;
  static constexpr float kC10 = -0x1.de3b3ap-4f;
  static constexpr float kC11 = 0x1.14558p-4f;
  static constexpr float kLn2High = 0x1.63p-1f;         // 355/512: exact times any exponent.
  static constexpr float kLn2Low = -0x1.bd0106p-13f;    // ln 2 - 355/512.
  static constexpr int32_t kSqrtHalfBits = 0x3F3504F3;  // Of sqrt(1/2), where 1 + f starts.
  static constexpr float kNearOne = -0x1.2bec34p-2f;    // sqrt(1/2) - 1, rounded up.
};

}  // namespace lockstep::kernels::order
