#include "tests/kernels/contract_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "common/base/philox.h"
#include "kernels/order/tree.h"

namespace lockstep::kernels::reference {
namespace {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kHighest = std::numeric_limits<float>::max();
constexpr size_t kBlockTokens = 32;

float HornerFma(std::span<const float> coefficients, float x) {
  float sum = coefficients[0];
  for (const float c : coefficients.subspan(1)) sum = std::fma(sum, x, c);
  return sum;
}

// log(1 + f) + e ln 2.
float LogOfParts(float f, float e) {
  const float coefficients[] = {0x1.14558p-4f,   -0x1.de3b3ap-4f, 0x1.e6f0fp-4f,
                                -0x1.fc2234p-4f, 0x1.233762p-3f,  -0x1.555c4cp-3f,
                                0x1.99a4b6p-3f,  -0x1.000006p-2f, 0x1.555548p-2f};
  float p = coefficients[0];
  for (size_t i = 1; i < 9; ++i) {
    const float product = p * f;
    p = product + coefficients[i];
  }
  const float z = f * f;
  float y = (f * z) * p;
  y = y + e * -0x1.bd0106p-13f;
  y = y - z * 0.5f;
  y = f + y;
  return y + e * 0x1.63p-1f;
}

float Unit(uint32_t word) {
  return static_cast<float>(2 * static_cast<uint64_t>(word) + 1) * 0x1p-33f;
}

struct Partial {
  float scaled_max = 0;
  float max = 0;
  float sum = 0;
  std::vector<float> out;
};

// One split: its blocks in ascending order with a running maximum.
Partial AttendSplit(const std::vector<float>& q, std::span<const std::vector<float>> keys,
                    std::span<const std::vector<float>> values, float c) {
  Partial state{.max = -std::numeric_limits<float>::infinity(),
                .out = std::vector<float>(q.size(), 0.0f)};
  for (size_t begin = 0; begin < keys.size(); begin += kBlockTokens) {
    const size_t count = std::min(kBlockTokens, keys.size() - begin);
    std::vector<float> p(kBlockTokens, 0.0f);
    float max = state.max;
    for (size_t j = 0; j < count; ++j) {
      for (size_t d = 0; d < q.size(); ++d) p[j] = std::fma(q[d], keys[begin + j][d], p[j]);
      max = std::max(max, p[j]);
    }
    const float scaled_max = max * c;
    if (begin > 0) {
      const float alpha = Exp2(state.scaled_max - scaled_max);
      state.sum = state.sum * alpha;
      for (float& o : state.out) o = o * alpha;
    }
    state.max = max;
    state.scaled_max = scaled_max;
    for (size_t j = 0; j < count; ++j) p[j] = Exp2(std::fma(p[j], c, -scaled_max));
    state.sum = state.sum + TreeSum(p);
    for (size_t j = 0; j < count; ++j) {
      for (size_t d = 0; d < q.size(); ++d) {
        state.out[d] = std::fma(p[j], values[begin + j][d], state.out[d]);
      }
    }
  }
  return state;
}

}  // namespace

float Exp2(float x) {
  if (x < -126) return 0;
  const float n = std::nearbyint(x);
  const float coefficients[] = {0x1.41fbb6p-13f,
                                0x1.5f3e56p-10f,
                                0x1.3b2d4ep-7f,
                                0x1.c6aee8p-5f,
                                0x1.ebfbdcp-3f,
                                0x1.62e43p-1f,
                                1.0f};
  return std::ldexp(HornerFma(coefficients, x - n), static_cast<int>(n));
}

float Exp(float x) {
  if (x < -86) return 0;
  if (x > 89) return std::numeric_limits<float>::infinity();
  // The rounder is part of the FMA: n comes from one rounding of x * log2(e).
  const float n = std::fma(x, kLog2E, 0x1.8p23f) - 0x1.8p23f;
  float r = std::fma(n, -0x1.62e43p-1f, x);
  r = std::fma(n, 0x1.05c61p-29f, r);
  const float coefficients[] = {
      0x1.6ae688p-10f, 0x1.126832p-7f, 0x1.555826p-5f, 0x1.555418p-3f, 0x1.fffffcp-2f, 1.0f, 1.0f};
  return std::ldexp(HornerFma(coefficients, r), static_cast<int>(n));
}

float Log(float x) {
  int e;
  float m = std::frexp(x, &e);
  if (std::bit_cast<uint32_t>(m) < 0x3F3504F3u) {
    m = m * 2;
    --e;
  }
  return LogOfParts(m - 1, static_cast<float>(e));
}

float Gumbel(uint32_t word) {
  const float u = Unit(word);
  if (u <= 0.5f) return -Log(-Log(u));
  const float w = Unit(~word);
  const float log1p = -w >= -0x1.2bec34p-2f ? LogOfParts(-w, 0) : LogOfParts(1 - 2 * w, -1);
  return -Log(-log1p);
}

float NoiseOf(uint64_t sub_seed, int64_t position, int32_t id) {
  const uint32_t lane = static_cast<uint32_t>(id);
  return Gumbel(base::Philox4x32(
      {static_cast<uint32_t>(position), lane >> 2, 0, 0},
      {static_cast<uint32_t>(sub_seed), static_cast<uint32_t>(sub_seed >> 32)})[lane & 3]);
}

std::vector<float> Exponentials(const std::vector<float>& z) {
  const float max = *std::max_element(z.begin(), z.end());
  std::vector<float> e;
  for (const float value : z) e.push_back(Exp2((value - max) * kLog2E));
  return e;
}

std::vector<float> LogSoftmax(const std::vector<float>& z) {
  const float max = *std::max_element(z.begin(), z.end());
  const float log_sum = Log(TreeSum(Exponentials(z)));
  std::vector<float> result;
  for (const float value : z) result.push_back(std::max(-kHighest, (value - max) - log_sum));
  return result;
}

float Entropy(const std::vector<float>& z) {
  const float max = *std::max_element(z.begin(), z.end());
  const std::vector<float> e = Exponentials(z);
  std::vector<float> terms;
  for (size_t i = 0; i < z.size(); ++i) terms.push_back(e[i] > 0 ? e[i] * (z[i] - max) : 0.0f);
  const float sum = TreeSum(e);
  return Log(sum) - TreeSum(terms) / sum;
}

std::vector<float> Scaled(const std::vector<float>& z, float temperature) {
  std::vector<float> scaled;
  for (const float value : z) {
    const float quotient = value / temperature;
    scaled.push_back(std::isfinite(value) ? std::clamp(quotient, -kHighest, kHighest) : quotient);
  }
  return scaled;
}

std::vector<float> RmsNorm(const std::vector<float>& x, const std::vector<float>& weight,
                           float epsilon) {
  std::vector<float> squares;
  for (const float value : x) squares.push_back(value * value);
  const float mean = TreeSum(squares) * (1.0f / static_cast<float>(x.size()));
  const float r = 1.0f / std::sqrt(mean + epsilon);
  std::vector<float> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const float h = x[i] * r;
    y.push_back(weight[i] * h);
  }
  return y;
}

std::vector<float> Attention(const std::vector<float>& q,
                             const std::vector<std::vector<float>>& keys,
                             const std::vector<std::vector<float>>& values, int split_kv_size) {
  const float c = kLog2E / std::sqrt(static_cast<float>(q.size()));
  const size_t split = static_cast<size_t>(split_kv_size);
  Partial total;
  for (size_t begin = 0; begin < keys.size(); begin += split) {
    const size_t count = std::min(split, keys.size() - begin);
    const Partial part = AttendSplit(q, std::span(keys).subspan(begin, count),
                                     std::span(values).subspan(begin, count), c);
    if (begin == 0) {
      total = part;
      continue;
    }
    const float max = std::max(total.max, part.max);
    const float x = Exp2(total.scaled_max - max * c);
    const float y = Exp2(part.scaled_max - max * c);
    total.max = max;
    total.scaled_max = max * c;
    total.sum = std::fma(part.sum, y, total.sum * x);
    for (size_t d = 0; d < q.size(); ++d) {
      total.out[d] = std::fma(part.out[d], y, total.out[d] * x);
    }
  }
  for (float& o : total.out) o = o / total.sum;
  return total.out;
}

}  // namespace lockstep::kernels::reference
