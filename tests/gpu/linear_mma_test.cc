// Our products of linear layers for any GPU since Ampere: every tiling against the reference, on
// operands that show an order of additions, and whole layers that run nothing else, at every number
// of rows and place of a batch.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear/certifier.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/linear_mma.h"
#include "kernels/cuda/linear/linear_plan.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/linear_rig.h"

namespace lockstep {
namespace {

using kernels::DType;
using kernels::SizeOf;
using kernels::cuda::CertifierOptions;
using kernels::cuda::KernelPath;
using kernels::cuda::LinearCall;
using kernels::cuda::LinearEngine;
using kernels::cuda::LinearPlan;
using kernels::cuda::LinearShape;
using testing::DenseShape;
using testing::Must;

class LinearMmaTest : public testing::GpuTest {};

uint64_t DifferingProducts(const LinearShape& shape, int tiling, int rows) {
  const size_t width = static_cast<size_t>(shape.segments == 1 ? shape.y_stride : shape.outputs);
  const size_t product_rows = static_cast<size_t>(shape.segments) * static_cast<size_t>(rows);
  const size_t bytes = product_rows * width * SizeOf(ProductType(shape));
  const auto elements = [](int a, int b) {
    return static_cast<size_t>(a) * static_cast<size_t>(b);
  };
  const kernels::Buffer weight = testing::DeviceBytes(elements(shape.outputs, shape.inputs) * 2);
  const kernels::Buffer x = testing::DeviceBytes(elements(rows, shape.x_stride) * 2);
  const kernels::Buffer bias = testing::DeviceBytes(static_cast<size_t>(shape.outputs) * 2);
  const kernels::Buffer expected = testing::DeviceBytes(bytes);
  const kernels::Buffer product = testing::DeviceBytes(bytes);
  const kernels::Buffer differing = testing::DeviceBytes(sizeof(unsigned long long));
  Must(cudaMemset(x.as<void>(), 0, x.bytes()));
  Must(cudaMemset(expected.as<void>(), 0xFF, bytes));
  Must(cudaMemset(product.as<void>(), 0xFF, bytes));
  Must(cudaMemset(differing.as<void>(), 0, differing.bytes()));
  Must(kernels::cuda::FillAdversarialWeight(weight.as<void>(), shape.outputs, shape.inputs,
                                            nullptr));
  Must(kernels::cuda::FillAdversarialX(x.as<void>(), rows, shape.inputs, shape.x_stride, nullptr));
  Must(kernels::cuda::FillUniform(bias.as<void>(), static_cast<size_t>(shape.outputs), 5, nullptr));
  const void* bias_of_shape = shape.bias ? bias.as<void>() : nullptr;
  Must(kernels::cuda::LinearReference({.shape = shape,
                                       .rows = rows,
                                       .weight = weight.as<void>(),
                                       .bias = bias_of_shape,
                                       .x = x.as<void>(),
                                       .product = expected.as<void>()},
                                      nullptr));
  Must(kernels::cuda::LinearByMma({.shape = shape,
                                   .tiling = tiling,
                                   .rows = rows,
                                   .weight = weight.as<void>(),
                                   .bias = bias_of_shape,
                                   .x = x.as<void>(),
                                   .product = product.as<void>()},
                                  nullptr));
  Must(kernels::cuda::CountDifferences({.a = product.as<void>(),
                                        .b = expected.as<void>(),
                                        .a_stride = width,
                                        .b_stride = width,
                                        .rows = static_cast<int>(product_rows),
                                        .columns = shape.outputs,
                                        .type = ProductType(shape)},
                                       differing.as<unsigned long long>(), nullptr));
  Must(cudaDeviceSynchronize());
  return testing::CopyFromDevice(differing.as<unsigned long long>(), 1)[0];
}

// Small layers whose rows and outputs end inside a tile.
TEST_F(LinearMmaTest, EveryTilingGivesTheReferencesBits) {
  const auto tilings = kernels::cuda::MmaTilings();
  for (int tiling = 0; tiling < static_cast<int>(tilings.size()); ++tiling) {
    const auto& [tile_rows, tile_outputs] = tilings[static_cast<size_t>(tiling)];
    const int outputs = tile_outputs * 2 + 24;
    LinearShape padded = DenseShape(outputs, 320);
    padded.x_stride += 64;
    padded.y_stride += 16;
    for (const LinearShape& shape : {padded, DenseShape(outputs, 64, 1, DType::kBf16, true),
                                     DenseShape(outputs, 1024, 1, DType::kF32),
                                     DenseShape(outputs, 768, 2), DenseShape(outputs, 1024, 8)}) {
      for (const int rows : {1, tile_rows - 1, tile_rows + 3}) {
        EXPECT_EQ(DifferingProducts(shape, tiling, rows), 0u)
            << "tiling " << tiling << ", " << rows << " rows, " << shape.inputs << " inputs in "
            << shape.segments << " segments";
      }
    }
  }
}

TEST_F(LinearMmaTest, ATilingFitsEveryNumberOfRows) {
  const LinearShape shape = DenseShape(64, 64);
  for (int rows = 1; rows <= 8192; ++rows) {
    int fitting = 0;
    for (const auto& tiling : kernels::cuda::MmaTilings()) {
      fitting += kernels::cuda::Fits(tiling, shape, rows) ? 1 : 0;
    }
    ASSERT_GT(fitting, 0) << rows << " rows";
  }
}

struct Layer {
  const char* name;
  LinearShape shape;
  bool accumulate = false;
};

class LinearMmaLayerTest : public testing::GpuTest, public ::testing::WithParamInterface<Layer> {};

INSTANTIATE_TEST_SUITE_P(
    Layers, LinearMmaLayerTest,
    ::testing::Values(Layer{"Qkv", DenseShape(6144, 4096)},
                      Layer{"DownTwoSegments", DenseShape(4096, 12288, 2), true},
                      Layer{"DownEightSegments", DenseShape(4096, 12288, 8), true},
                      Layer{"Bias", DenseShape(1152, 896, 1, DType::kBf16, true)},
                      Layer{"LmHead", DenseShape(18944, 4096, 1, DType::kF32)}),
    [](const auto& info) { return std::string(info.param.name); });

// Certified and planned as where the library offers nothing.
TEST_P(LinearMmaLayerTest, EveryRowCountAndPlaceGivesTheBitsOfTheRowAlone) {
  constexpr int kRowsMax = 8192;
  const auto& [name, shape, accumulate] = GetParam();
  const CertifierOptions options = {.ladder = {1, 8, 16, 32, 64, 128, 256, 1024, 4096, kRowsMax},
                                    .library = false,
                                    .own_kernels = KernelPath::kPortable};
  auto certifier = kernels::cuda::Certifier::Create(nullptr, options);
  ASSERT_TRUE(certifier.ok()) << certifier.status().message();
  kernels::cuda::CertificateTable table({});
  const absl::Status certified = (*certifier)->Certify(shape, table);
  ASSERT_TRUE(certified.ok()) << certified.message();
  EXPECT_TRUE(table.refusals().empty());
  for (const auto& certificate : table.certificates()) {
    EXPECT_EQ(certificate.traits.engine, LinearEngine::kMma);
  }
  const auto plan = LinearPlan::Create(nullptr, table, shape);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  testing::LinearRig rig(shape, kRowsMax);
  rig.ProvideWorkspace(plan->WorkspaceBytes(kRowsMax, accumulate));
  rig.ComputeExpected(accumulate);
  std::vector<int> counts;
  for (int rows = 1; rows <= 256; ++rows) counts.push_back(rows);
  for (const int rows : {257, 511, 777, 1025, 1999, 3333, 4095, 8191}) counts.push_back(rows);
  for (size_t i = 0; i < counts.size(); ++i) {
    rig.Run(
        [&](const LinearCall& call, cudaStream_t stream) {
          const absl::Status status = plan->Run(call, stream);
          ASSERT_TRUE(status.ok()) << status.message();
        },
        counts[i], i, nullptr);
  }
  const std::vector<unsigned long long> differing = rig.Differing();
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(differing[i], 0u) << "elements at " << counts[i] << " rows";
  }
}

TEST_P(LinearMmaLayerTest, EveryTilingRepeatsBesideABusyStream) {
  const auto& [name, shape, accumulate] = GetParam();
  auto certifier = kernels::cuda::Certifier::Create(
      nullptr,
      {.ladder = {testing::kRepeatedRows}, .library = false, .own_kernels = KernelPath::kPortable});
  ASSERT_TRUE(certifier.ok()) << certifier.status().message();
  testing::ExpectRepeats(**certifier, nullptr, shape, accumulate);
}

}  // namespace
}  // namespace lockstep
