// Linear layers: exact bits against the order in plain code, accuracy against fp64, and every way
// in which a row could meet its neighbours.
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "kernels/order/tree.h"
#include "tests/kernels/kernel_test.h"

namespace lockstep::kernels {
namespace {

using testing::Bf16Data;
using testing::BitwiseEqual;
using testing::FloatsOfBf16;
using testing::SumTolerance;
using testing::UniformData;
using testing::WideData;

struct Shape {
  int rows;
  int inputs;
  int outputs;
  int segments = 1;
};

// One row in the canonical order, in scalar code.
std::vector<float> ReferenceRow(const float* x, const std::vector<float>& w, const Shape& shape) {
  std::vector<float> y;
  const int length = shape.inputs / shape.segments;
  for (int o = 0; o < shape.outputs; ++o) {
    std::vector<float> partial(static_cast<size_t>(shape.segments), 0.0f);
    for (int i = 0; i < shape.inputs; ++i) {
      float& sum = partial[static_cast<size_t>(i / length)];
      sum = std::fma(x[i], w[static_cast<size_t>(o * shape.inputs + i)], sum);
    }
    y.push_back(TreeSum(partial));
  }
  return y;
}

class LinearTest : public KernelTest {
 protected:
  std::unique_ptr<LinearWeight> Pack(const std::vector<float>& w, const Shape& shape,
                                     const std::vector<float>& bias = {}) {
    const HostTensor weight{"w", w.data(), DType::kF32, {shape.outputs, shape.inputs}};
    const HostTensor bias_tensor{"b", bias.data(), DType::kF32, {shape.outputs}};
    return kernels()
        .PackLinear({&weight, 1}, {&bias_tensor, bias.empty() ? 0u : 1u},
                    {.segments = shape.segments})
        .value();
  }

  std::vector<float> Run(const LinearWeight& weight, const std::vector<float>& x, int rows) {
    const size_t outputs = static_cast<size_t>(weight.outputs());
    float* y = Put(std::vector<float>(static_cast<size_t>(rows) * outputs, NAN));
    kernels().Linear({.weight = &weight,
                      .rows = rows,
                      .x = Put(x),
                      .x_stride = static_cast<size_t>(weight.inputs()),
                      .y = y,
                      .y_stride = outputs});
    return Get(y, static_cast<size_t>(rows) * outputs);
  }
};

const Shape kShapes[] = {{1, 64, 32},       {1, 7, 3},        {2, 128, 33},
                         {3, 300, 100},     {13, 257, 40},    {24, 128, 96, 2},
                         {33, 512, 128, 8}, {5, 1024, 70, 4}, {50, 320, 31, 1}};

TEST_P(LinearTest, FollowsTheCanonicalOrderInEveryBit) {
  for (const Shape& shape : kShapes) {
    const auto x = WideData(1, static_cast<size_t>(shape.rows * shape.inputs));
    const auto w = WideData(2, static_cast<size_t>(shape.outputs * shape.inputs));
    const auto y = Run(*Pack(w, shape), x, shape.rows);
    for (int r = 0; r < shape.rows; ++r) {
      const auto expected = ReferenceRow(x.data() + r * shape.inputs, w, shape);
      ASSERT_TRUE(BitwiseEqual({y.data() + r * shape.outputs, expected.size()}, expected))
          << "row " << r << " of " << shape.rows << " x " << shape.inputs << " -> " << shape.outputs
          << " in " << shape.segments;
    }
  }
}

TEST_P(LinearTest, IsAsCloseToTheExactProductAsItsRoundingsAllow) {
  const Shape shape{5, 1024, 70, 4};
  const auto x = UniformData(3, static_cast<size_t>(shape.rows * shape.inputs));
  const auto w = UniformData(4, static_cast<size_t>(shape.outputs * shape.inputs));
  const auto y = Run(*Pack(w, shape), x, shape.rows);
  // A term passes the chain of its segment and the tree.
  const size_t roundings = static_cast<size_t>(shape.inputs / shape.segments) + 2;
  for (int r = 0; r < shape.rows; ++r) {
    for (int o = 0; o < shape.outputs; ++o) {
      double exact = 0;
      double magnitude = 0;
      for (int i = 0; i < shape.inputs; ++i) {
        const double product = double{x[static_cast<size_t>(r * shape.inputs + i)]} *
                               w[static_cast<size_t>(o * shape.inputs + i)];
        exact += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(y[static_cast<size_t>(r * shape.outputs + o)], exact,
                  SumTolerance(roundings, magnitude));
    }
  }
}

TEST_P(LinearTest, Bf16WeightsEqualTheSameWeightsInFp32) {
  const Shape shape{29, 384, 75, 2};
  const auto x = WideData(5, static_cast<size_t>(shape.rows * shape.inputs));
  const auto bits = Bf16Data(WideData(6, static_cast<size_t>(shape.outputs * shape.inputs)));
  const HostTensor tensor{"w", bits.data(), DType::kBf16, {shape.outputs, shape.inputs}};
  const auto narrow = kernels().PackLinear({&tensor, 1}, {}, {.segments = shape.segments}).value();
  const auto wide = Pack(FloatsOfBf16(bits), shape);
  EXPECT_LT(narrow->bytes(), wide->bytes());
  for (const int rows : {1, 4, 29}) {
    EXPECT_TRUE(BitwiseEqual(Run(*narrow, x, rows), Run(*wide, x, rows), 75)) << rows;
  }
}

TEST_P(LinearTest, RowAloneEqualsRowAtEveryPlaceOfEveryBatch) {
  const Shape shape{1, 192, 70, 1};
  const auto w = WideData(7, static_cast<size_t>(shape.outputs * shape.inputs));
  const auto weight = Pack(w, shape);
  const auto row = WideData(8, static_cast<size_t>(shape.inputs));
  const auto alone = Run(*weight, row, 1);
  std::vector<int> batches = {65, 129, 255};
  if (slow_target()) batches = {67};
  for (int batch = 1; batch <= 33; ++batch) batches.push_back(batch);
  const float neighbours[] = {0.5f, 1e30f, NAN};
  for (const int batch : batches) {
    for (int place = 0; place<batch; place += batch> 33 ? 31 : (slow_target() ? 5 : 1)) {
      std::vector<float> x(static_cast<size_t>(batch * shape.inputs),
                           neighbours[(batch + place) % 3]);
      std::copy(row.begin(), row.end(), x.begin() + place * shape.inputs);
      const auto y = Run(*weight, x, batch);
      ASSERT_TRUE(BitwiseEqual({y.data() + place * shape.outputs, alone.size()}, alone))
          << "batch " << batch << ", place " << place;
    }
  }
}

TEST_P(LinearTest, AddsBiasThenResidualEachRounded) {
  const Shape shape{14, 64, 40};
  const auto x = WideData(9, static_cast<size_t>(shape.rows * shape.inputs));
  const auto w = WideData(10, static_cast<size_t>(shape.outputs * shape.inputs));
  const auto bias = WideData(11, static_cast<size_t>(shape.outputs));
  const auto residual = WideData(12, static_cast<size_t>(shape.rows * shape.outputs));
  const auto weight = Pack(w, shape, bias);
  float* y = Put(residual);
  kernels().Linear({.weight = weight.get(),
                    .rows = shape.rows,
                    .x = Put(x),
                    .x_stride = 64,
                    .y = y,
                    .y_stride = 40,
                    .accumulate = true});
  std::vector<float> expected;
  for (int r = 0; r < shape.rows; ++r) {
    const auto product = ReferenceRow(x.data() + r * shape.inputs, w, shape);
    for (size_t o = 0; o < product.size(); ++o) {
      const float with_bias = product[o] + bias[o];
      expected.push_back(residual[static_cast<size_t>(r) * product.size() + o] + with_bias);
    }
  }
  EXPECT_TRUE(BitwiseEqual(Get(y, expected.size()), expected, 40));
}

TEST_P(LinearTest, StridesLeaveTheGapsAlone) {
  const Shape shape{15, 64, 33};
  const auto w = WideData(13, static_cast<size_t>(shape.outputs * shape.inputs));
  const auto weight = Pack(w, shape);
  const auto x = WideData(14, static_cast<size_t>(shape.rows) * 70);
  float* y = Put(std::vector<float>(static_cast<size_t>(shape.rows) * 50, 7.0f));
  kernels().Linear({.weight = weight.get(),
                    .rows = shape.rows,
                    .x = Put(x),
                    .x_stride = 70,
                    .y = y,
                    .y_stride = 50});
  const auto got = Get(y, static_cast<size_t>(shape.rows) * 50);
  for (int r = 0; r < shape.rows; ++r) {
    auto expected = ReferenceRow(x.data() + r * 70, w, shape);
    expected.resize(50, 7.0f);
    ASSERT_TRUE(BitwiseEqual({got.data() + r * 50, 50}, expected)) << "row " << r;
  }
}

TEST_P(LinearTest, RanksWithTheirSegmentsSumToTheWholeByTheTree) {
  constexpr int kInputs = 512;
  constexpr int kOutputs = 40;
  constexpr int kRows = 3;
  const auto x = WideData(15, kRows * kInputs);
  const auto w = WideData(16, kOutputs * kInputs);
  for (const int segments : {1, 2, 4, 8}) {
    const auto whole = Run(*Pack(w, {kRows, kInputs, kOutputs, segments}), x, kRows);
    for (int ranks = 1; ranks <= segments; ranks *= 2) {
      const int owned = kInputs / ranks;
      std::vector<std::vector<float>> partial;
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> shard;
        for (int o = 0; o < kOutputs; ++o) {
          const auto begin = w.begin() + o * kInputs + rank * owned;
          shard.insert(shard.end(), begin, begin + owned);
        }
        const auto weight = Pack(shard, {kRows, owned, kOutputs, segments / ranks});
        float* y = Put(std::vector<float>(kRows * kOutputs));
        kernels().Linear({.weight = weight.get(),
                          .rows = kRows,
                          .x = Put(x) + rank * owned,
                          .x_stride = kInputs,
                          .y = y,
                          .y_stride = kOutputs});
        partial.push_back(Get(y, kRows * kOutputs));
      }
      std::vector<float> sum;
      for (size_t i = 0; i < whole.size(); ++i) {
        std::vector<float> terms;
        for (const auto& part : partial) terms.push_back(part[i]);
        sum.push_back(TreeSum(terms));
      }
      EXPECT_TRUE(BitwiseEqual(sum, whole, kOutputs)) << segments << " on " << ranks;
    }
  }
}

TEST_P(LinearTest, StackedMatricesEqualSeparateOnes) {
  const auto a = WideData(17, 40 * 64);
  const auto b = WideData(18, 9 * 64);
  const auto x = WideData(19, 2 * 64);
  const std::vector<HostTensor> both = {{"a", a.data(), DType::kF32, {40, 64}},
                                        {"b", b.data(), DType::kF32, {9, 64}}};
  const auto stacked = Run(*kernels().PackLinear(both, {}, {}).value(), x, 2);
  const auto ya = Run(*Pack(a, {2, 64, 40}), x, 2);
  const auto yb = Run(*Pack(b, {2, 64, 9}), x, 2);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(BitwiseEqual({&stacked[r * 49], 40}, {&ya[r * 40], 40}));
    EXPECT_TRUE(BitwiseEqual({&stacked[r * 49 + 40], 9}, {&yb[r * 9], 9}));
  }
}

TEST_P(LinearTest, RepeatsItsBits) {
  const Shape shape{31, 256, 96, 4};
  const auto x = WideData(20, static_cast<size_t>(shape.rows * shape.inputs));
  const auto weight = Pack(WideData(21, static_cast<size_t>(shape.outputs * shape.inputs)), shape);
  const auto first = Run(*weight, x, shape.rows);
  for (int i = 0; i < (slow_target() ? 3 : 20); ++i) {
    ASSERT_TRUE(BitwiseEqual(Run(*weight, x, shape.rows), first, 96));
  }
}

TEST_P(LinearTest, RefusesTensorsThatDoNotFitAndNamesThem) {
  const std::vector<float> data(64 * 64);
  const std::vector<HostTensor> unequal = {{"q", data.data(), DType::kF32, {2, 64}},
                                           {"k", data.data(), DType::kF32, {2, 32}}};
  EXPECT_THAT(std::string(kernels().PackLinear(unequal, {}, {}).status().message()),
              ::testing::HasSubstr("k: 32"));
  const HostTensor weight{"w", data.data(), DType::kF32, {4, 64}};
  const HostTensor bias{"w.bias", data.data(), DType::kF32, {5}};
  EXPECT_THAT(std::string(kernels().PackLinear({&weight, 1}, {&bias, 1}, {}).status().message()),
              ::testing::HasSubstr("w.bias"));
  EXPECT_EQ(kernels().PackLinear({&weight, 1}, {}, {.segments = 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Cpu, LinearTest, ::testing::ValuesIn(AllConfigurations()), NameOf);

}  // namespace
}  // namespace lockstep::kernels
