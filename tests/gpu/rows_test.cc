// Ops that look at each row by itself, except those over the vocabulary. Bits are compared with
// plain host code of the contract, wherever in a batch the row is and whoever its neighbours are;
// accuracy with doubles, within bounds derived from the operands.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/row_ops_rig.h"
#include "tests/gpu/row_reference.h"
#include "tests/gpu/test_streams.h"
#include "tests/support/bitwise.h"
#include "tests/support/philox_data.h"
#include "tests/support/tolerance.h"

namespace lockstep {
namespace {

using testing::BitwiseEqual;
using testing::DeviceArray;
using testing::Must;
using testing::RowOp;

// Unit roundoff of bf16, which has 8 bits.
constexpr double kBf16Roundoff = 0x1p-8;

std::vector<std::unique_ptr<RowOp>> AllOps() {
  std::vector<std::unique_ptr<RowOp>> ops;
  for (const int width : {8, 128, 1000, 4096, 5128}) ops.push_back(testing::MakeRmsNormOp(width));
  ops.push_back(testing::MakeRmsNormOp(12288));
  ops.push_back(testing::MakeResidualNormOp(4096, 1, false));
  ops.push_back(testing::MakeResidualNormOp(4096, 2, false));
  ops.push_back(testing::MakeResidualNormOp(1000, 4, true));
  ops.push_back(testing::MakeResidualNormOp(520, 8, true));
  ops.push_back(testing::MakeSwiGluOp(3072));
  ops.push_back(testing::MakeSwiGluOp(40));
  ops.push_back(testing::MakeQkvPrepareOp({.q_heads = 32, .kv_heads = 8}));
  ops.push_back(testing::MakeQkvPrepareOp({.q_heads = 7, .kv_heads = 1, .head_dim = 64}));
  ops.push_back(testing::MakeQkvPrepareOp({.head_dim = 64, .q_norm = false}));
  ops.push_back(testing::MakeQkvPrepareOp({.q_norm = false, .k_norm = false}));
  return ops;
}

// A row of wide magnitudes, as the op takes it.
std::vector<float> RowFor(const RowOp& op, uint32_t stream) {
  std::vector<float> row = testing::WideData(stream, op.in_width(), 6);
  for (size_t i = 0; i < op.bf16_width(); ++i) {
    row[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(row[i]) & 0xFFFF0000u);
  }
  return row;
}

// Neighbours random, huge, infinite and NaN.
std::vector<float> Crowd(const RowOp& op, size_t rows) {
  const std::vector<float> random = RowFor(op, 7);
  std::vector<float> in;
  for (size_t row = 0; row < rows; ++row) {
    const float fills[] = {0, 3e38f, -std::numeric_limits<float>::infinity(), NAN};
    if (row % 4 == 0) {
      in.insert(in.end(), random.begin(), random.end());
    } else {
      in.insert(in.end(), op.in_width(), fills[row % 4]);
    }
  }
  return in;
}

void Put(const std::vector<float>& row, size_t place, std::vector<float>& rows) {
  std::copy(row.begin(), row.end(), rows.begin() + static_cast<ptrdiff_t>(place * row.size()));
}

std::vector<float> Row(const std::vector<float>& rows, size_t place, size_t width) {
  const auto begin = rows.begin() + static_cast<ptrdiff_t>(place * width);
  return {begin, begin + static_cast<ptrdiff_t>(width)};
}

class RowOpsTest : public testing::GpuTest {};

TEST_F(RowOpsTest, EveryRowHasTheContractsBits) {
  for (const auto& op : AllOps()) {
    std::vector<float> in;
    std::vector<float> expected;
    for (uint32_t row = 0; row < 9; ++row) {
      const std::vector<float> values = RowFor(*op, 100 + row);
      in.insert(in.end(), values.begin(), values.end());
      const std::vector<float> y = op->Expected(values);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    EXPECT_TRUE(BitwiseEqual(op->Run(in), expected, op->out_width())) << op->name();
  }
}

TEST_F(RowOpsTest, ARowIsBlindToItsPlaceAndNeighbours) {
  for (const auto& op : AllOps()) {
    const std::vector<float> row = RowFor(*op, 1);
    const std::vector<float> alone = op->Run(row);
    for (const size_t rows : {2, 3, 17, 64, 133, 256, 257, 1025}) {
      std::vector<float> in = Crowd(*op, rows);
      const size_t places[] = {0, rows * 2 / 3, rows - 1};
      for (const size_t place : places) Put(row, place, in);
      const std::vector<float> out = op->Run(in);
      for (const size_t place : places) {
        EXPECT_TRUE(BitwiseEqual(Row(out, place, op->out_width()), alone))
            << op->name() << " at " << place << " of " << rows;
      }
    }
  }
}

// The row at every second place, from `start` on, between all kinds of neighbours.
std::vector<float> Alternating(const RowOp& op, const std::vector<float>& row, size_t rows,
                               size_t start) {
  std::vector<float> in;
  const std::vector<float> crowd = Crowd(op, 4);
  for (size_t place = 0; place < rows; ++place) {
    const std::vector<float> next =
        place % 2 == start ? row : Row(crowd, place / 2 % 4, op.in_width());
    in.insert(in.end(), next.begin(), next.end());
  }
  return in;
}

// Narrow rows, so that every place of every batch can be looked at.
TEST_F(RowOpsTest, EveryBatchSizeAndPlaceGivesTheBitsOfTheRowAlone) {
  std::vector<std::unique_ptr<RowOp>> ops;
  ops.push_back(testing::MakeRmsNormOp(520));
  ops.push_back(testing::MakeResidualNormOp(264, 1, false));
  ops.push_back(testing::MakeResidualNormOp(264, 2, true));
  ops.push_back(testing::MakeSwiGluOp(264));
  ops.push_back(testing::MakeQkvPrepareOp({.q_heads = 2, .kv_heads = 1, .head_dim = 64}));
  for (const auto& op : ops) {
    const std::vector<float> row = RowFor(*op, 1);
    const std::vector<float> alone = op->Run(row);
    for (const size_t rows : testing::BatchSizes()) {
      for (const size_t start : {0, 1}) {
        const std::vector<float> out = op->Run(Alternating(*op, row, rows, start));
        for (size_t place = start; place < rows; place += 2) {
          ASSERT_TRUE(BitwiseEqual(Row(out, place, op->out_width()), alone))
              << op->name() << " at " << place << " of " << rows;
        }
      }
    }
  }
}

TEST_F(RowOpsTest, RepeatsBesideABusyStream) {
  for (const auto& op : AllOps()) {
    std::vector<float> in;
    for (uint32_t row = 0; row < 40; ++row) {
      const std::vector<float> values = RowFor(*op, 200 + row);
      in.insert(in.end(), values.begin(), values.end());
    }
    const std::vector<float> expected = op->Run(in);
    // The fused norm changes its inputs, so that they are set for each run.
    op->Load(in);
    Must(cudaDeviceSynchronize());
    testing::RunBesideABusyStream(
        20, [&](cudaStream_t stream) { op->Enqueue(stream); },
        [&](int run) {
          EXPECT_TRUE(BitwiseEqual(op->Read(), expected, op->out_width()))
              << op->name() << ", run " << run;
          op->Load(in);
          Must(cudaDeviceSynchronize());
        });
  }
}

TEST_F(RowOpsTest, RmsNormIsCloseToDoubles) {
  constexpr size_t kWidth = 4096;
  const auto op = testing::MakeRmsNormOp(kWidth);
  const std::vector<float> x = RowFor(*op, 3);
  const std::vector<float> weight =
      testing::FloatsOfBf16(testing::Bf16Data(testing::UniformData(90, kWidth, 2)));
  const std::vector<float> y = op->Run(x);
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
  const double r = 1 / std::sqrt(squares / kWidth + 1e-6);
  for (size_t i = 0; i < kWidth; ++i) {
    const double exact = static_cast<double>(weight[i]) * static_cast<double>(x[i]) * r;
    // Two roundings to bf16; in fp32 a square, 12 levels of T, and six steps more.
    const double relative = 2 * kBf16Roundoff + kBf16Roundoff * kBf16Roundoff + testing::Gamma(19);
    ASSERT_NEAR(static_cast<double>(y[i]), exact, std::abs(exact) * relative) << i;
  }
}

TEST_F(RowOpsTest, RotationIsCloseToDoubles) {
  constexpr int kPosition = 77;
  constexpr int kDim = 128;
  const auto op = testing::MakeQkvPrepareOp({.q_norm = false, .k_norm = false});
  const std::vector<float> x = RowFor(*op, 4);
  const std::vector<float> y = op->Run(x);
  for (int i = 0; i < kDim; ++i) {
    const double angle = kPosition * std::pow(10000.0, -2.0 * (i % (kDim / 2)) / kDim);
    const double other = i < kDim / 2 ? -static_cast<double>(x[static_cast<size_t>(i + kDim / 2)])
                                      : static_cast<double>(x[static_cast<size_t>(i - kDim / 2)]);
    const double a = static_cast<double>(x[static_cast<size_t>(i)]) * std::cos(angle);
    const double b = other * std::sin(angle);
    // Of each product: the table's rounding and its own; then the sum's.
    ASSERT_NEAR(static_cast<double>(y[static_cast<size_t>(i)]), a + b,
                (std::abs(a) + std::abs(b)) * 3.02 * kBf16Roundoff)
        << i;
  }
}

TEST_F(RowOpsTest, SiluOfEveryInputIsTheRoundingOfTheExactOne) {
  const std::vector<float> silu = testing::SiluOfEveryInput();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float g = std::bit_cast<float>(bits << 16);
    const float y = silu[bits];
    if (std::isnan(g) || g == -std::numeric_limits<float>::infinity()) {
      ASSERT_TRUE(std::isnan(y)) << g;
      continue;
    }
    const double exact = static_cast<double>(g) / (1 + std::exp(-static_cast<double>(g)));
    // Below, the exponential in fp32 is infinite.
    if (g < -88.5f) {
      ASSERT_LE(std::abs(static_cast<double>(y)), std::abs(exact) * (1 + kBf16Roundoff)) << g;
      continue;
    }
    // Within 2 ulp of the exponential and two roundings, all of which bf16 nearly always hides.
    const double error = 0x1p-21;
    const float low = testing::RoundedToBf16(static_cast<float>(exact * (1 - error)));
    const float high = testing::RoundedToBf16(static_cast<float>(exact * (1 + error)));
    ASSERT_TRUE(y == low || y == high) << g << " gave " << y << ", not " << low;
  }
}

// The digest is that of torch.nn.functional.silu in bf16 on an H200 (PyTorch 2.11, CUDA 13.0), over
// all inputs in order, two bytes each, NaN as 0x7FC0.
TEST_F(RowOpsTest, SiluOfEveryInputHasTorchsBits) {
  uint64_t digest = 0xCBF29CE484222325;  // FNV-1a.
  for (const float y : testing::SiluOfEveryInput()) {
    const uint32_t bits = std::isnan(y) ? 0x7FC0u : std::bit_cast<uint32_t>(y) >> 16;
    for (const uint32_t byte : {bits & 255, bits >> 8}) {
      digest = (digest ^ byte) * 0x100000001B3;
    }
  }
  EXPECT_EQ(digest, 0x3CDF6B5C3BECD4E0u);
}

TEST_F(RowOpsTest, SwiGluRoundsTwiceForEveryGate) {
  const std::vector<float> silu = testing::SiluOfEveryInput();
  for (const float up : {1.5f, -0.0078125f, 3.34375f, -97.5f, 1e-20f, 0.0f}) {
    const float u = testing::RoundedToBf16(up);
    std::vector<uint16_t> gate_up;
    for (uint32_t bits = 0; bits < 0x10000; bits += 8) {
      for (uint32_t i = 0; i < 8; ++i) gate_up.push_back(static_cast<uint16_t>(bits + i));
      gate_up.resize(gate_up.size() + 8, static_cast<uint16_t>(std::bit_cast<uint32_t>(u) >> 16));
    }
    const DeviceArray<uint16_t> in(gate_up);
    const DeviceArray<uint16_t> y(size_t{0x10000});
    Must(kernels::cuda::SwiGlu({.width = 8, .rows = 0x2000, .gate_up = in.data(), .y = y.data()},
                               nullptr));
    const std::vector<float> got = testing::FloatsOfBf16(y.Read());
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(silu[i]) || std::isinf(silu[i])) continue;
      const float expected = testing::RoundedToBf16(silu[i] * u);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected))
          << silu[i] << " times " << u;
    }
  }
}

TEST_F(RowOpsTest, CopiesRowsByIds) {
  for (const int width : {8, 1000, 4096}) {
    const size_t columns = static_cast<size_t>(width);
    std::vector<uint16_t> table(300 * columns);
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<uint16_t>(testing::PhiloxWord(5, i));
    }
    std::vector<int32_t> ids;
    for (uint32_t i = 0; i < 513; ++i) {
      ids.push_back(static_cast<int32_t>(testing::PhiloxWord(6, i) % 300));
    }
    const DeviceArray<uint16_t> device_table(table);
    const DeviceArray<int32_t> device_ids(ids);
    DeviceArray<uint16_t> y(ids.size() * columns);
    std::vector<uint16_t> expected;
    for (const int32_t id : ids) {
      const auto row = table.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(id) * columns);
      expected.insert(expected.end(), row, row + width);
    }
    Must(kernels::cuda::Embedding({.table = device_table.data(),
                                   .table_dtype = kernels::DType::kBf16,
                                   .width = width,
                                   .rows = static_cast<int>(ids.size()),
                                   .ids = device_ids.data(),
                                   .y = y.data()},
                                  nullptr));
    EXPECT_EQ(y.Read(), expected) << width;
    y.Poison();
    Must(kernels::cuda::GatherRows({.width = width,
                                    .rows = static_cast<int>(ids.size()),
                                    .source_rows = device_ids.data(),
                                    .x = device_table.data(),
                                    .y = y.data()},
                                   nullptr));
    EXPECT_EQ(y.Read(), expected) << width;
  }
}

// The rows of a table hold numbers of every kind.
TEST_F(RowOpsTest, CopiesRowsInEveryBatchBesideABusyStream) {
  constexpr int kWidth = 264;
  constexpr size_t kRowsMax = 8191;
  std::vector<uint16_t> table(size_t{300} * kWidth);
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<uint16_t>(testing::PhiloxWord(7, i));
  }
  std::vector<int32_t> ids;
  std::vector<uint16_t> expected;
  for (uint32_t i = 0; i < kRowsMax; ++i) {
    ids.push_back(static_cast<int32_t>(testing::PhiloxWord(8, i) % 300));
    const auto row = table.begin() + ptrdiff_t{ids.back()} * kWidth;
    expected.insert(expected.end(), row, row + kWidth);
  }
  const DeviceArray<uint16_t> device_table(table);
  const DeviceArray<int32_t> device_ids(ids);
  DeviceArray<uint16_t> y(expected.size());
  const auto embed = [&](size_t rows, cudaStream_t stream) {
    Must(kernels::cuda::Embedding({.table = device_table.data(),
                                   .table_dtype = kernels::DType::kBf16,
                                   .width = kWidth,
                                   .rows = static_cast<int>(rows),
                                   .ids = device_ids.data(),
                                   .y = y.data()},
                                  stream));
  };
  const auto gather = [&](size_t rows, cudaStream_t stream) {
    Must(kernels::cuda::GatherRows({.width = kWidth,
                                    .rows = static_cast<int>(rows),
                                    .source_rows = device_ids.data(),
                                    .x = device_table.data(),
                                    .y = y.data()},
                                   stream));
  };
  const auto expect_rows = [&](size_t rows) {
    std::vector<uint16_t> of_batch = expected;
    std::fill(of_batch.begin() + static_cast<ptrdiff_t>(rows * kWidth), of_batch.end(), 0xFFFF);
    ASSERT_TRUE(y.Read() == of_batch) << rows << " rows";
    y.Poison();
    Must(cudaDeviceSynchronize());
  };
  for (const size_t rows : testing::BatchSizes()) {
    embed(rows, nullptr);
    expect_rows(rows);
    gather(rows, nullptr);
    expect_rows(rows);
  }
  testing::RunBesideABusyStream(
      20, [&](cudaStream_t stream) { embed(1025, stream); }, [&](int) { expect_rows(1025); });
  testing::RunBesideABusyStream(
      20, [&](cudaStream_t stream) { gather(1025, stream); }, [&](int) { expect_rows(1025); });
}

TEST_F(RowOpsTest, ACapturedGraphServesOtherContents) {
  const std::vector<float> norms = testing::FloatsOfBf16(std::vector<uint16_t>(4096, 0x3F80));
  DeviceArray<uint16_t> x(testing::Bf16Data(testing::UniformData(1, 4096)));
  const DeviceArray<float> weight(norms);
  const DeviceArray<uint16_t> y(size_t{4096});
  testing::ReplayAfter(
      [&](cudaStream_t stream) {
        Must(kernels::cuda::RmsNorm({.weight = weight.data(),
                                     .epsilon = 1e-6f,
                                     .width = 4096,
                                     .rows = 1,
                                     .x = x.data(),
                                     .x_stride = 4096,
                                     .y = y.data(),
                                     .y_stride = 4096},
                                    stream));
      },
      [&] { x.Load(testing::Bf16Data(testing::UniformData(2, 4096))); });
  const std::vector<float> changed =
      testing::FloatsOfBf16(testing::Bf16Data(testing::UniformData(2, 4096)));
  EXPECT_TRUE(
      BitwiseEqual(testing::FloatsOfBf16(y.Read()), testing::RmsNormOfRow(changed, norms, 1e-6f)));
}

TEST_F(RowOpsTest, RefusesShapesThatItDoesNotHave) {
  namespace cuda = kernels::cuda;
  EXPECT_EQ(cuda::RmsNorm({.width = 4100, .rows = 1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::RmsNorm({.width = 20000, .rows = 1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::RmsNorm({.width = 64, .rows = 1, .x_stride = 65, .y_stride = 64}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cuda::ResidualRmsNorm({.norm = {.width = 64, .rows = 1}, .segments = 3}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SwiGlu({.width = 12, .rows = 1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cuda::Embedding({.table_dtype = kernels::DType::kF32, .width = 8, .rows = 1}, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(
      cuda::QkvPrepare({.args = {.shape = {.rows = 1}, .q_heads = 4, .kv_heads = 2, .head_dim = 96},
                        .pool = {.layers = 1, .kv_heads = 2, .head_dim = 96}},
                       nullptr),
      cudaErrorInvalidValue);
  EXPECT_EQ(cuda::SwiGlu({.width = 16, .rows = 0}, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace lockstep
