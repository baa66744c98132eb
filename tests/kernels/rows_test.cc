// Ops on single rows: embedding, gather, RMSNorm, SwiGLU, and QkvPrepare's norm and rotation.
#include <cmath>

#include "kernels/order/rope_table.h"
#include "tests/kernels/attention_rig.h"
#include "tests/kernels/contract_reference.h"
#include "tests/kernels/kernel_test.h"

namespace lockstep::kernels {
namespace {

using testing::Bf16Data;
using testing::BitwiseEqual;
using testing::FloatsOfBf16;
using testing::Gamma;
using testing::kUnitRoundoff;
using testing::UniformData;
using testing::WideData;

class RowsTest : public KernelTest {};

std::vector<float> Slice(const std::vector<float>& v, size_t begin, size_t count) {
  return {v.begin() + static_cast<ptrdiff_t>(begin),
          v.begin() + static_cast<ptrdiff_t>(begin + count)};
}

TEST_P(RowsTest, EmbeddingCopiesRowsOfEitherType) {
  const auto bits = Bf16Data(WideData(1, 50 * 37));
  const auto values = FloatsOfBf16(bits);
  const std::vector<int32_t> ids = {49, 0, 7, 7, 13};
  std::vector<float> expected;
  for (const int32_t id : ids) {
    const auto row = Slice(values, static_cast<size_t>(id) * 37, 37);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  const HostTensor tables[] = {{"t", bits.data(), DType::kBf16, {50, 37}},
                               {"t", values.data(), DType::kF32, {50, 37}}};
  for (const HostTensor& tensor : tables) {
    const Buffer table = kernels().UploadTable(tensor).value();
    float* y = Put(std::vector<float>(expected.size()));
    kernels().Embedding({.table = table.as<void>(),
                         .table_dtype = tensor.dtype,
                         .width = 37,
                         .rows = 5,
                         .ids = Put(ids),
                         .y = y});
    EXPECT_TRUE(BitwiseEqual(Get(y, expected.size()), expected, 37));
  }
}

TEST_P(RowsTest, GatherCopiesChosenRows) {
  const auto x = WideData(2, 9 * 21);
  const std::vector<int32_t> rows = {8, 0, 8, 3};
  float* y = Put(std::vector<float>(4 * 21));
  kernels().GatherRows({.width = 21, .rows = 4, .source_rows = Put(rows), .x = Put(x), .y = y});
  const auto got = Get(y, 4 * 21);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(Slice(got, i * 21, 21), Slice(x, static_cast<size_t>(rows[i]) * 21, 21));
  }
}

TEST_P(RowsTest, RmsNormIsTheContractsAtEveryWidth) {
  for (const int width : {1, 3, 15, 16, 17, 64, 100, 128, 1000, 4096}) {
    const size_t n = static_cast<size_t>(width);
    const auto x = WideData(3, 3 * n);
    const auto weight = UniformData(4, n);
    float* y = Put(std::vector<float>(3 * (n + 2), 5.0f));
    kernels().RmsNorm({.weight = Put(weight),
                       .epsilon = 1e-6f,
                       .width = width,
                       .rows = 3,
                       .x = Put(x),
                       .x_stride = n,
                       .y = y,
                       .y_stride = n + 2});
    const auto got = Get(y, 3 * (n + 2));
    for (size_t row = 0; row < 3; ++row) {
      auto expected = reference::RmsNorm(Slice(x, row * n, n), weight, 1e-6f);
      expected.resize(n + 2, 5.0f);
      ASSERT_TRUE(BitwiseEqual(Slice(got, row * (n + 2), n + 2), expected)) << "width " << width;
    }
  }
}

TEST_P(RowsTest, RmsNormIsAsCloseToTheExactOneAsItsRoundingsAllow) {
  constexpr size_t kWidth = 1000;
  const auto x = UniformData(5, kWidth);
  const auto weight = UniformData(6, kWidth);
  float* y = Put(std::vector<float>(kWidth));
  kernels().RmsNorm({.weight = Put(weight),
                     .epsilon = 1e-6f,
                     .width = kWidth,
                     .rows = 1,
                     .x = Put(x),
                     .x_stride = kWidth,
                     .y = y,
                     .y_stride = kWidth});
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double exact_r = 1 / std::sqrt(squares / kWidth + double{1e-6f});
  const auto got = Get(y, kWidth);
  for (size_t i = 0; i < kWidth; ++i) {
    // Square, ten levels of the tree, mean (two), epsilon; halved by the root; root, division and
    // two products.
    const double exact = double{weight[i]} * x[i] * exact_r;
    ASSERT_NEAR(got[i], exact, Gamma(14 / 2 + 4) * std::abs(exact));
  }
}

TEST_P(RowsTest, RmsNormOfHostileRowsLeavesTheirNeighboursAlone) {
  const auto row = WideData(7, 96);
  const auto expected = reference::RmsNorm(row, std::vector<float>(96, 1.0f), 1e-5f);
  const float* weight = Put(std::vector<float>(96, 1.0f));
  for (const float neighbour : {0.0f, 1e30f, INFINITY, NAN}) {
    for (size_t place = 0; place < 17; ++place) {
      std::vector<float> x(17 * 96, neighbour);
      std::copy(row.begin(), row.end(), x.begin() + static_cast<ptrdiff_t>(place * 96));
      float* y = Put(x);
      kernels().RmsNorm({.weight = weight,
                         .epsilon = 1e-5f,
                         .width = 96,
                         .rows = 17,
                         .x = y,
                         .x_stride = 96,
                         .y = y,
                         .y_stride = 96});
      ASSERT_TRUE(BitwiseEqual(Slice(Get(y, 17 * 96), place * 96, 96), expected));
    }
  }
}

TEST_P(RowsTest, SwiGluIsTheContractsAndClose) {
  for (const int width : {1, 17, 512}) {
    const size_t n = static_cast<size_t>(width);
    const auto gate_up = WideData(8, 5 * 2 * n, 6);
    float* y = Put(std::vector<float>(5 * n));
    kernels().SwiGlu({.width = width, .rows = 5, .gate_up = Put(gate_up), .y = y});
    const auto got = Get(y, 5 * n);
    std::vector<float> expected;
    for (size_t i = 0; i < 5 * n; ++i) {
      const float g = gate_up[i / n * 2 * n + i % n];
      const float u = gate_up[i / n * 2 * n + n + i % n];
      const float silu = g / (1.0f + reference::Exp(-g));
      expected.push_back(silu * u);
      const double exact = double{g} / (1 + std::exp(-double{g})) * u;
      // Exponential (1.5 ulp = 3 u), sum, quotient, product.
      ASSERT_NEAR(got[i], exact, Gamma(6) * std::abs(exact) + 0x1p-149);
    }
    ASSERT_TRUE(BitwiseEqual(got, expected, n));
  }
}

TEST_P(RowsTest, QkvPrepareNormalizesAndRotatesQAndKOnly) {
  for (const bool norms : {true, false}) {
    AttentionRig rig(kernels(), {.q_heads = 3, .kv_heads = 1, .head_dim = 48, .norms = norms});
    const Chunk chunk{.stream = 9, .end = 40};
    rig.Step({chunk});
    const auto frequencies = RopeInverseFrequencies(10000, 48);
    const auto table = MakeRopeValues({.head_dim = 48, .positions = 40});
    for (int position = 0; position < 40; ++position) {
      const auto row = rig.Row(chunk, position);
      std::vector<float> expected;
      for (size_t head = 0; head < 5; ++head) {
        auto x = Slice(row, head * 48, 48);
        if (head < 4) {
          if (norms) x = reference::RmsNorm(x, UniformData(head < 3 ? 77 : 78, 48, 6), 1e-6f);
          const float* cos = &table[static_cast<size_t>(position) * 48];
          const float* sin = cos + 24;
          for (size_t i = 0; i < 24; ++i) {
            const float x1 = x[i], x2 = x[24 + i];
            const float a = x1 * cos[i], b = x2 * sin[i], c = x2 * cos[i], d = x1 * sin[i];
            x[i] = a - b;
            x[24 + i] = c + d;
          }
        }
        expected.insert(expected.end(), x.begin(), x.end());
      }
      ASSERT_TRUE(BitwiseEqual(Slice(rig.prepared(), static_cast<size_t>(position) * 240, 240),
                               expected, 48))
          << "position " << position;
    }
  }
}

TEST_P(RowsTest, KvCacheRefusesAnotherBlockSize) {
  EXPECT_EQ(kernels()
                .CreateKvCache(
                    {.layers = 1, .kv_heads = 1, .head_dim = 8, .blocks = 1, .block_tokens = 16})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Cpu, RowsTest, ::testing::ValuesIn(AllConfigurations()), NameOf);

}  // namespace
}  // namespace lockstep::kernels
