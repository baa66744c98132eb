// The polynomials: bits against plain code on every instruction set, and error in ulp against
// double, measured over a dense sweep and asserted.
#include <cmath>
#include <cstdio>

#include "kernels/order/rope_table.h"
#include "tests/kernels/contract_reference.h"
#include "tests/kernels/kernel_test.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/math_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vocabulary-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lockstep::kernels::cpu {
namespace HWY_NAMESPACE {

template <class Function>
std::vector<float> Map(const std::vector<float>& x, const Function& function) {
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); i += kLanes) {
    StoreFirst(function(LoadFirst(&x[i], x.size() - i)), &y[i], x.size() - i);
  }
  return y;
}

std::vector<float> Exp2All(const std::vector<float>& x) {
  return Map(x, [](VF v) HWY_ATTR { return Exp2(v); });
}
std::vector<float> ExpAll(const std::vector<float>& x) {
  return Map(x, [](VF v) HWY_ATTR { return Exp(v); });
}
std::vector<float> LogAll(const std::vector<float>& x) {
  return Map(x, [](VF v) HWY_ATTR { return Log(v); });
}
// Words travel as float bits.
std::vector<float> ExponentialAll(const std::vector<float>& words) {
  return Map(words, [](VF v) HWY_ATTR { return ExponentialNoise(hn::BitCast(U(), v)); });
}
std::vector<float> GumbelAll(const std::vector<float>& words) {
  return Map(words, [](VF v) HWY_ATTR { return GumbelNoise(hn::BitCast(U(), v)); });
}
std::vector<uint32_t> WordsAll(uint64_t key, uint32_t position, uint32_t quads) {
  std::vector<uint32_t> words(4 * (quads + kLanes));
  for (uint32_t quad = 0; quad < quads; quad += kLanes) {
    RandomWords(key, position, quad, &words[4 * quad]);
  }
  words.resize(4 * quads);
  return words;
}

}  // namespace HWY_NAMESPACE
}  // namespace lockstep::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lockstep::kernels::cpu {

HWY_EXPORT(Exp2All);
HWY_EXPORT(ExpAll);
HWY_EXPORT(LogAll);
HWY_EXPORT(ExponentialAll);
HWY_EXPORT(GumbelAll);
HWY_EXPORT(WordsAll);

namespace {

using testing::BitwiseEqual;
using testing::UlpError;

class MathTest : public ::testing::TestWithParam<int64_t> {
 private:
  ScopedTarget target_{GetParam()};
};

std::vector<float> Sweep(float low, float high, size_t count) {
  std::vector<float> x;
  for (size_t i = 0; i < count; ++i) {
    x.push_back(low + (high - low) * static_cast<float>(testing::PhiloxWord(9, i)) * 0x1p-32f);
  }
  return x;
}

std::vector<float> ReferenceOf(const std::vector<float>& x, float (*function)(float)) {
  std::vector<float> y;
  for (const float value : x) y.push_back(function(value));
  return y;
}

template <class Exact>
double WorstUlp(const std::vector<float>& x, const std::vector<float>& y, const Exact& exact) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst, UlpError(y[i], exact(double{x[i]})));
  return worst;
}

constexpr size_t kSamples = 200000;

TEST_P(MathTest, Exp2IsTheContractsWithinOneUlp) {
  auto x = Sweep(-126, 0, kSamples);
  for (const float edge : {0.0f, -0.0f, -0.5f, -1.0f, -125.5f, -126.0f, 127.0f}) x.push_back(edge);
  const auto y = HWY_DYNAMIC_DISPATCH(Exp2All)(x);
  EXPECT_TRUE(BitwiseEqual(y, ReferenceOf(x, reference::Exp2)));
  EXPECT_LT(WorstUlp(x, y, [](double v) { return std::exp2(v); }), 1.0);
}

TEST_P(MathTest, Exp2AtTheEdges) {
  const auto y = HWY_DYNAMIC_DISPATCH(Exp2All)({0.0f, -0.0f, -126.1f, -1e30f, -INFINITY, NAN});
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 1);
  for (int i = 2; i < 5; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], 0);
  EXPECT_TRUE(std::isnan(y[5]));
}

TEST_P(MathTest, ExpIsTheContractsWithinOneAndAHalfUlp) {
  auto x = Sweep(-86, 88.7f, kSamples);
  for (const float edge : {0.0f, -0.0f, -86.0f, 88.72f, 1.0f}) x.push_back(edge);
  const auto y = HWY_DYNAMIC_DISPATCH(ExpAll)(x);
  EXPECT_TRUE(BitwiseEqual(y, ReferenceOf(x, reference::Exp)));
  EXPECT_LT(WorstUlp(x, y, [](double v) { return std::exp(v); }), 1.5);
}

TEST_P(MathTest, ExpAtTheEdges) {
  const auto y = HWY_DYNAMIC_DISPATCH(ExpAll)({-86.1f, -INFINITY, 88.8f, 1e30f, INFINITY, NAN});
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  for (size_t i = 2; i < 5; ++i) EXPECT_EQ(y[i], INFINITY);
  EXPECT_TRUE(std::isnan(y[5]));
}

TEST_P(MathTest, LogIsTheContractsWithinOneAndAHalfUlp) {
  std::vector<float> x = {1.0f, 0x1p-126f, 3.4e38f, 0x1.fffffep-1f, 0x1.000002p0f};
  for (const float exponent : Sweep(-125, 127, kSamples)) x.push_back(std::exp2(exponent));
  for (const float near_one : Sweep(0.5f, 2, kSamples)) x.push_back(near_one);
  const auto y = HWY_DYNAMIC_DISPATCH(LogAll)(x);
  EXPECT_EQ(y[0], 0);
  EXPECT_TRUE(BitwiseEqual(y, ReferenceOf(x, reference::Log)));
  EXPECT_LT(WorstUlp(x, y, [](double v) { return std::log(v); }), 1.5);
}

std::vector<float> NoiseWords() {
  std::vector<float> words;
  for (const uint32_t word : {0u, 1u, 2u, 0xFFFFFFFFu, 0xFFFFFFFEu, 0x7FFFFFFFu, 0x80000000u,
                              0x80000001u, 0x80000080u, 0x80000081u}) {
    words.push_back(std::bit_cast<float>(word));
  }
  for (size_t i = 0; i < kSamples; ++i) {
    words.push_back(std::bit_cast<float>(testing::PhiloxWord(10, i)));
    // Towards both ends.
    words.push_back(std::bit_cast<float>(testing::PhiloxWord(11, i) >> (i % 32)));
    words.push_back(std::bit_cast<float>(~(testing::PhiloxWord(12, i) >> (i % 32))));
  }
  return words;
}

TEST_P(MathTest, ExponentialNoiseIsPreciseAtBothEnds) {
  const auto words = NoiseWords();
  const auto y = HWY_DYNAMIC_DISPATCH(ExponentialAll)(words);
  double worst = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    // Against the exact u = (2x + 1) / 2^33. Rounding u, or 1 - u above a half, to fp32 is part of
    // the contract and moves the logarithm by up to an ulp of the argument.
    const uint64_t odd = 2 * uint64_t{std::bit_cast<uint32_t>(words[i])} + 1;
    const double u = static_cast<double>(odd) * 0x1p-33;
    const double exact =
        u <= 0.5 ? -std::log(u) : -std::log1p(-static_cast<double>((1ull << 33) - odd) * 0x1p-33);
    ASSERT_GT(y[i], 0);
    worst = std::max(worst, UlpError(y[i], exact));
  }
  EXPECT_LT(worst, 2.5);
}

TEST_P(MathTest, GumbelNoiseIsTheContractsAndFiniteForEveryWord) {
  const auto words = NoiseWords();
  const auto y = HWY_DYNAMIC_DISPATCH(GumbelAll)(words);
  std::vector<float> expected;
  for (const float word : words) {
    expected.push_back(reference::Gumbel(std::bit_cast<uint32_t>(word)));
    ASSERT_TRUE(std::isfinite(expected.back()));
  }
  EXPECT_TRUE(BitwiseEqual(y, expected));
}

TEST_P(MathTest, RandomWordsArePhilox) {
  for (const uint64_t key : {0ull, ~0ull, 0x123456789ABCDEF0ull}) {
    for (const uint32_t position : {0u, 77u, ~0u}) {
      const auto words = HWY_DYNAMIC_DISPATCH(WordsAll)(key, position, 300);
      for (uint32_t id = 0; id < words.size(); ++id) {
        const auto expected =
            base::Philox4x32({position, id / 4, 0, 0},
                             {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
        ASSERT_EQ(words[id], expected[id % 4]) << "id " << id;
      }
    }
  }
}

std::vector<int64_t> Targets() {
  std::vector<int64_t> targets;
  for (const Configuration& c : AllConfigurations()) {
    if (c.threads == 1) targets.push_back(c.target);
  }
  return targets;
}

INSTANTIATE_TEST_SUITE_P(Cpu, MathTest, ::testing::ValuesIn(Targets()),
                         [](const auto& info) { return std::string(hwy::TargetName(info.param)); });

TEST(PhiloxTest, MatchesThePublishedVectors) {
  // Known answers of the authors' Random123 distribution.
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(base::Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(base::Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(
      base::Philox4x32({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
      (Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(RopeTableTest, DoubleFunctionsAgreeWithWiderOnes) {
  for (uint64_t i = 0; i < 100000; ++i) {
    const double angle =
        std::ldexp(std::abs(double{testing::PhiloxUniform(13, i)}), 20 - static_cast<int>(i % 40));
    ASSERT_NEAR(Sin64(angle), static_cast<double>(sinl(angle)), 2e-15) << angle;
    ASSERT_NEAR(Cos64(angle), static_cast<double>(cosl(angle)), 2e-15) << angle;
    const double x = double{testing::PhiloxUniform(14, i)} * 30;
    ASSERT_NEAR(Exp64(x) / static_cast<double>(expl(x)), 1, 2e-15) << x;
    const double positive = std::exp2(x);
    ASSERT_NEAR(Log64(positive), static_cast<double>(logl(positive)),
                2e-15 * std::max(1.0, std::abs(x)));
  }
}

TEST(RopeTableTest, EntriesAreTheRoundedCosinesAndSines) {
  const RopeParameters parameters{.theta = 1e6, .head_dim = 128, .positions = 3000};
  const auto frequencies = RopeInverseFrequencies(parameters.theta, parameters.head_dim);
  const auto table = MakeRopeValues(parameters);
  for (size_t position = 0; position < 3000; position += 7) {
    for (size_t i = 0; i < 64; ++i) {
      const float exponent = static_cast<float>(2 * i) / 128.0f;
      const float power = static_cast<float>(powl(1e6L, exponent));
      ASSERT_EQ(frequencies[i], 1.0f / power);
      const float angle = static_cast<float>(position) * frequencies[i];
      ASSERT_EQ(table[position * 128 + i], static_cast<float>(cosl(angle)));
      ASSERT_EQ(table[position * 128 + 64 + i], static_cast<float>(sinl(angle)));
    }
  }
}

TEST(RopeTableTest, TakesScaledFrequenciesAndAttentionScaling) {
  const auto table = MakeRopeValues({.head_dim = 4,
                                     .positions = 2,
                                     .attention_scaling = 0.5f,
                                     .inverse_frequencies = {0.25f, 0}});
  EXPECT_EQ(table, (std::vector<float>{0.5f, 0.5f, 0, 0, std::cos(0.25f) * 0.5f, 0.5f,
                                       std::sin(0.25f) * 0.5f, 0}));
}

}  // namespace
}  // namespace lockstep::kernels::cpu
#endif  // HWY_ONCE
