#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/order/tree.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"

// Messages of all-reduces, from one token to a prefill chunk.
namespace lockstep::testing {

// Tokens at which an implementation could change its way: every power of two with its neighbours,
// and what one wave of CTAs takes, two on each of 132 multiprocessors.
inline std::vector<int> BorderTokens() {
  std::vector<int> tokens = {1, 2, 3, 263, 264, 265};
  for (int power = 4; power < 8192; power *= 2) {
    tokens.insert(tokens.end(), {power - 1, power, power + 1});
  }
  tokens.insert(tokens.end(), {8191, 8192});
  return tokens;
}

// How many of `sums` are not what `expected` is, over and over.
inline size_t DifferingFromRepeated(const std::vector<float>& sums,
                                    const std::vector<float>& expected) {
  size_t differing = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    differing += sums[i] != expected[i % expected.size()] ? 1 : 0;
  }
  return differing;
}

// Two ranks' parts, which stand one after the other in their messages, and the tree's sums of them.
struct TwoParts {
  TwoParts(std::vector<float> of_first, std::vector<float> of_second)
      : parts{std::move(of_first), std::move(of_second)}, sums(parts[0].size()) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] = kernels::TreeSum(std::vector<float>{parts[0][i], parts[1][i]});
    }
  }
  std::vector<float> parts[2];
  std::vector<float> sums;
};

// All-reduces of one rank at every border give the sums.
template <typename End>
void ExpectSumsAtBorders(const TwoParts& two, End* end, cudaStream_t stream) {
  constexpr size_t kElementsMax = size_t{8192} * 4096;
  const std::vector<float>& part = two.parts[end->rank()];
  const DeviceArray<float> x(kElementsMax);
  for (size_t at = 0; at < kElementsMax; at += part.size()) CopyToDevice(part, x.data() + at);
  DeviceArray<float> y(kElementsMax);
  for (const int tokens : BorderTokens()) {
    const size_t count = static_cast<size_t>(tokens) * 4096;
    y.Poison();
    end->AllReduce(x.data(), count, y.data());
    Must(cudaStreamSynchronize(stream));
    EXPECT_EQ(DifferingFromRepeated(CopyFromDevice(y.data(), count), two.sums), 0)
        << tokens << " tokens, rank " << end->rank();
  }
}

}  // namespace lockstep::testing
