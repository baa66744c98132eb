#include "tests/gpu/row_reference.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/order/tree.h"

namespace lockstep::testing {

float RoundedToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t half = 0x7FFFu + (bits >> 16 & 1);
  return std::bit_cast<float>((bits + half) & 0xFFFF0000u);
}

std::vector<float> RmsNormOfRow(std::span<const float> x, std::span<const float> weight,
                                float epsilon) {
  std::vector<float> squares;
  for (const float value : x) squares.push_back(value * value);
  const float mean = kernels::TreeSum(squares) * (1.0f / static_cast<float>(x.size()));
  const float r = 1.0f / std::sqrt(mean + epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const float h = RoundedToBf16(x[i] * r);
    y.push_back(RoundedToBf16(weight[i] * h));
  }
  return y;
}

std::vector<float> ResidualSumOfRow(std::span<const float> residual,
                                    std::span<const float> partials, std::span<const float> bias) {
  const size_t width = residual.size();
  std::vector<float> y;
  for (size_t i = 0; i < width; ++i) {
    std::vector<float> parts;
    for (size_t at = i; at < partials.size(); at += width) parts.push_back(partials[at]);
    float update = kernels::TreeSum(parts);
    if (!bias.empty()) update = update + bias[i];
    y.push_back(RoundedToBf16(residual[i] + RoundedToBf16(update)));
  }
  return y;
}

std::vector<float> RotatedHead(std::span<const float> x, std::span<const float> table) {
  const size_t half = x.size() / 2;
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const float cos = RoundedToBf16(table[i % half]);
    const float sin = RoundedToBf16(table[half + i % half]);
    const float rotated = i < half ? -x[i + half] : x[i - half];
    y.push_back(RoundedToBf16(RoundedToBf16(x[i] * cos) + RoundedToBf16(rotated * sin)));
  }
  return y;
}

}  // namespace lockstep::testing
