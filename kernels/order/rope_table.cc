#include "kernels/order/rope_table.h"

#include <array>
#include <bit>
#include <cstdint>

namespace lockstep::kernels {
namespace {

// Adding 1.5 * 2^52 leaves the nearest integer in the low bits, ties to even.
constexpr double kRounder = 0x1.8p52;

// Coefficients of x^(2i+1) and x^(2i) in the series of sine and cosine: +-1/n!. On [-pi/4, pi/4]
// the first term left out is below 1e-18.
constexpr std::array<double, 9> kSinSeries = {1.0,
                                              -0x1.5555555555555p-3,
                                              0x1.1111111111111p-7,
                                              -0x1.a01a01a01a01ap-13,
                                              0x1.71de3a556c734p-19,
                                              -0x1.ae64567f544e4p-26,
                                              0x1.6124613a86d09p-33,
                                              -0x1.ae7f3e733b81fp-41,
                                              0x1.952c77030ad4ap-49};
constexpr std::array<double, 9> kCosSeries = {1.0,
                                              -0x1p-1,
                                              0x1.5555555555555p-5,
                                              -0x1.6c16c16c16c17p-10,
                                              0x1.a01a01a01a01ap-16,
                                              -0x1.27e4fb7789f5cp-22,
                                              0x1.1eed8eff8d898p-29,
                                              -0x1.93974a8c07c9dp-37,
                                              0x1.ae7f3e733b81fp-45};

double Horner(const std::array<double, 9>& series, double x) {
  double sum = series.back();
  for (size_t i = series.size() - 1; i-- > 0;) sum = sum * x + series[i];
  return sum;
}

// x = r + quadrant * pi/2 with |r| <= pi/4. pi/2 in three parts; the first two have 33 bits, so
// that their products with a quadrant below 2^20 are exact.
double Reduce(double x, int64_t& quadrant) {
  const double n = (x * 0x1.45f306dc9c883p-1 + kRounder) - kRounder;
  quadrant = static_cast<int64_t>(n);
  return ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
}

double SinOfQuadrant(double r, int64_t quadrant) {
  const double value =
      (quadrant & 1) != 0 ? Horner(kCosSeries, r * r) : r * Horner(kSinSeries, r * r);
  return (quadrant & 2) != 0 ? -value : value;
}

}  // namespace

double Sin64(double x) {
  int64_t quadrant;
  const double r = Reduce(x, quadrant);
  return SinOfQuadrant(r, quadrant);
}

double Cos64(double x) {
  int64_t quadrant;
  const double r = Reduce(x, quadrant);
  return SinOfQuadrant(r, quadrant + 1);
}

double Exp64(double x) {
  const double n = (x * 0x1.71547652b82fep+0 + kRounder) - kRounder;
  // ln 2 in two parts; n times the first is exact. |r| <= ln 2 / 2.
  const double r = (x - n * 0x1.62e42fefp-1) - n * 0x1.473de6af278edp-34;
  double term = 1;
  double sum = 1;
  for (int i = 1; i <= 18; ++i) {
    term = term * r / i;
    sum = sum + term;
  }
  return sum * std::bit_cast<double>((static_cast<int64_t>(n) + 1023) << 52);
}

double Log64(double x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 artanh((m - 1) / (m + 1)).
  const int64_t bits = std::bit_cast<int64_t>(x);
  const int64_t e = (bits - 0x3FE6A09E667F3BCD) >> 52;
  const double m = std::bit_cast<double>(bits - (e << 52));
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double sum = 0;
  for (int i = 21; i >= 1; i -= 2) sum = sum * z + 1.0 / i;
  const double exponent = static_cast<double>(e);
  return exponent * 0x1.62e42fefp-1 + (2 * s * sum + exponent * 0x1.473de6af278edp-34);
}

std::vector<float> RopeInverseFrequencies(double theta, int head_dim) {
  std::vector<float> frequencies;
  const double log_theta = Log64(theta);
  for (int i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float power = static_cast<float>(Exp64(static_cast<double>(exponent) * log_theta));
    frequencies.push_back(1.0f / power);
  }
  return frequencies;
}

std::vector<float> MakeRopeValues(const RopeParameters& parameters) {
  const std::vector<float> frequencies =
      parameters.inverse_frequencies.empty()
          ? RopeInverseFrequencies(parameters.theta, parameters.head_dim)
          : parameters.inverse_frequencies;
  const size_t half = frequencies.size();
  std::vector<float> table(static_cast<size_t>(parameters.positions) * 2 * half);
  for (int position = 0; position < parameters.positions; ++position) {
    float* row = table.data() + static_cast<size_t>(position) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      row[i] = static_cast<float>(Cos64(angle)) * parameters.attention_scaling;
      row[half + i] = static_cast<float>(Sin64(angle)) * parameters.attention_scaling;
    }
  }
  return table;
}

}  // namespace lockstep::kernels
