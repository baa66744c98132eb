#include "kernels/cpu/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/numeric/int128.h"

namespace lockstep::kernels::cpu {
namespace {

// Exact weight of a candidate in the top-p sum: an integer, so that the sum has no order.
uint64_t Weight(float exponential) { return static_cast<uint64_t>(exponential * 0x1p40f); }

// Finds the cut by halving the range that holds it, not by sorting: which half it is in only needs
// the sum over the half of larger candidates.
size_t KeepTopP(std::span<Candidate> all, float top_p, const float* exponentials) {
  const auto sum_of = [&](std::span<const Candidate> part) {
    uint64_t sum = 0;
    for (const Candidate candidate : part) sum += Weight(exponentials[IdOf(candidate)]);
    return sum;
  };
  const uint64_t threshold = TopPThreshold(top_p, sum_of(all));
  uint64_t before = 0;  // Sum over candidates in front of the range.
  size_t begin = 0;
  for (size_t end = all.size(); end - begin > 1;) {
    const size_t middle = begin + (end - begin) / 2;
    const auto at = [&](size_t index) { return all.begin() + static_cast<ptrdiff_t>(index); };
    std::nth_element(at(begin), at(middle), at(end), std::greater<>());
    const uint64_t larger = sum_of(all.subspan(begin, middle - begin));
    if (before + larger >= threshold) {
      end = middle;
    } else {
      before += larger;
      begin = middle;
    }
  }
  return begin + 1;
}

}  // namespace

Candidate MakeCandidate(float logit, int32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | static_cast<uint32_t>(~id);
}

int32_t IdOf(Candidate candidate) { return ~static_cast<int32_t>(candidate & 0xFFFFFFFFu); }

float LogitOf(Candidate candidate) {
  const uint32_t ordered = static_cast<uint32_t>(candidate >> 32);
  return std::bit_cast<float>((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}

uint64_t TopPThreshold(float top_p, uint64_t total) {
  // top_p = mantissa * 2^-shift with a mantissa below 2^24.
  int exponent;
  const float fraction = std::frexp(top_p, &exponent);
  const uint64_t mantissa = static_cast<uint64_t>(std::ldexp(fraction, 24));
  const int shift = 24 - exponent;
  if (shift >= 127) return 1;
  const absl::uint128 product = absl::uint128(mantissa) * total;
  const absl::uint128 rounded_up = (product + ((absl::uint128(1) << shift) - 1)) >> shift;
  return absl::Uint128Low64(rounded_up);
}

size_t FilterCandidates(std::span<Candidate> all, const SamplingRow& row, float largest,
                        const float* exponentials, float min_p_log) {
  size_t kept = all.size();
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < kept) {
    kept = static_cast<size_t>(row.top_k);
    std::nth_element(all.begin(), all.begin() + row.top_k, all.end(), std::greater<>());
  }
  if (row.top_p < 1) kept = KeepTopP(all.subspan(0, kept), row.top_p, exponentials);
  if (min_p_log > -std::numeric_limits<float>::infinity()) {
    const auto below = [&](Candidate candidate) {
      return !(LogitOf(candidate) - largest >= min_p_log);
    };
    kept = static_cast<size_t>(
        std::remove_if(all.begin(), all.begin() + static_cast<ptrdiff_t>(kept), below) -
        all.begin());
  }
  return kept;
}

}  // namespace lockstep::kernels::cpu
