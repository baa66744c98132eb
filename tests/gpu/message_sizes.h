#pragma once

#include <cstddef>
#include <vector>

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

}  // namespace lockstep::testing
