#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

namespace lockstep::testing {

// Compares bits, so that 0 differs from -0 and NaN equals itself. On failure names the first
// differing coordinate (row, column by `row_length`), both values, both bit patterns and the count.
inline ::testing::AssertionResult BitwiseEqual(std::span<const float> actual,
                                               std::span<const float> expected, size_t row_length) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << "sizes differ: " << actual.size() << " and " << expected.size();
  }
  size_t differing = 0;
  size_t first = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<uint32_t>(actual[i]) == std::bit_cast<uint32_t>(expected[i])) continue;
    if (differing++ == 0) first = i;
  }
  if (differing == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << absl::StrFormat(
             "%d of %d values differ, first at [%d, %d]: %.9g (%08x) and %.9g (%08x)", differing,
             actual.size(), first / row_length, first % row_length, actual[first],
             std::bit_cast<uint32_t>(actual[first]), expected[first],
             std::bit_cast<uint32_t>(expected[first]));
}

inline ::testing::AssertionResult BitwiseEqual(std::span<const float> actual,
                                               std::span<const float> expected) {
  return BitwiseEqual(actual, expected, actual.empty() ? 1 : actual.size());
}

}  // namespace lockstep::testing
