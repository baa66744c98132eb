// Linear layers on the device. The reference kernel writes the contract down in plain code; every
// certified algorithm, and the plan that pads to certified rows, must give its bits for every row
// count, at every place of a batch, whatever the neighbours hold.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/linear/certifier.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/linear_plan.h"
#include "kernels/cuda/linear/linear_sm90.h"
#include "kernels/cuda/linear/timed_graph.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/order/tree.h"
#include "tests/gpu/bit_flip.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/linear_rig.h"
#include "tests/support/bitwise.h"
#include "tests/support/philox_data.h"
#include "tests/support/tolerance.h"

namespace lockstep {
namespace {

using kernels::DType;
using kernels::cuda::Certificate;
using kernels::cuda::CertificateTable;
using kernels::cuda::Certifier;
using kernels::cuda::CertifierOptions;
using kernels::cuda::KernelNode;
using kernels::cuda::LinearCall;
using kernels::cuda::LinearPlan;
using kernels::cuda::LinearShape;
using testing::Certified;
using testing::DenseShape;
using testing::Handle;
using testing::LinearRig;
using testing::Must;

constexpr int kRowsMax = 8192;

// y by the reference, widened.
std::vector<float> Reference(const LinearShape& shape, int rows, const std::vector<uint16_t>& x,
                             const std::vector<uint16_t>& weight) {
  const kernels::Buffer device_x = testing::DeviceBytes(x.size() * 2);
  const kernels::Buffer device_weight = testing::DeviceBytes(weight.size() * 2);
  const size_t count = static_cast<size_t>(shape.segments * rows * shape.outputs);
  const kernels::Buffer product = testing::DeviceBytes(count * sizeof(float));
  testing::CopyToDevice(x, device_x.as<uint16_t>());
  testing::CopyToDevice(weight, device_weight.as<uint16_t>());
  Must(kernels::cuda::LinearReference({.shape = shape,
                                       .rows = rows,
                                       .weight = device_weight.as<void>(),
                                       .x = device_x.as<void>(),
                                       .product = product.as<void>()},
                                      nullptr));
  Must(cudaDeviceSynchronize());
  if (kernels::cuda::ProductType(shape) == DType::kF32) {
    return testing::CopyFromDevice(product.as<float>(), count);
  }
  return testing::FloatsOfBf16(testing::CopyFromDevice(product.as<uint16_t>(), count));
}

class LinearReferenceTest : public testing::GpuTest {};

// A tensor-core step aligns its products and cuts what falls off: two roundings a term bound it.
TEST_F(LinearReferenceTest, IsAsAccurateAsItsSumsAllow) {
  constexpr int kRows = 19;
  for (const auto& [outputs, inputs, segments] :
       {std::tuple(72, 4096, 1), std::tuple(64, 12288, 2), std::tuple(8, 1024, 8)}) {
    const LinearShape shape =
        DenseShape(outputs, inputs, segments, segments == 1 ? DType::kF32 : DType::kBf16);
    const auto x = testing::Bf16Data(testing::UniformData(1, static_cast<size_t>(kRows * inputs)));
    const auto weight =
        testing::Bf16Data(testing::UniformData(2, static_cast<size_t>(outputs * inputs)));
    const std::vector<float> sums = Reference(shape, kRows, x, weight);
    const std::vector<float> wide_x = testing::FloatsOfBf16(x);
    const std::vector<float> wide_weight = testing::FloatsOfBf16(weight);
    const int length = inputs / segments;
    for (int segment = 0; segment < segments; ++segment) {
      for (int row = 0; row < kRows; ++row) {
        for (int output = 0; output < outputs; ++output) {
          double exact = 0;
          double magnitude = 0;
          for (int i = segment * length; i < (segment + 1) * length; ++i) {
            const double product =
                static_cast<double>(wide_x[static_cast<size_t>(row * inputs + i)]) *
                static_cast<double>(wide_weight[static_cast<size_t>(output * inputs + i)]);
            exact += product;
            magnitude += std::abs(product);
          }
          const float sum = sums[static_cast<size_t>((segment * kRows + row) * outputs + output)];
          ASSERT_NEAR(sum, exact,
                      testing::SumTolerance(2 * static_cast<size_t>(length), magnitude));
        }
      }
    }
  }
}

TEST_F(LinearReferenceTest, CombineIsTheTreeThenBiasThenResidual) {
  constexpr int kRows = 5;
  constexpr int kOutputs = 64;
  constexpr size_t kCount = size_t{kRows} * kOutputs;
  for (const int segments : {2, 4, 8}) {
    const LinearShape shape = DenseShape(kOutputs, 512, segments, DType::kBf16, true);
    const std::vector<float> partials =
        testing::WideData(3, kCount * static_cast<size_t>(segments));
    const auto bias = testing::Bf16Data(testing::WideData(4, kOutputs));
    const auto residual = testing::Bf16Data(testing::WideData(5, kCount));
    const kernels::Buffer device_partials = testing::DeviceBytes(partials.size() * 4);
    const kernels::Buffer device_bias = testing::DeviceBytes(bias.size() * 2);
    const kernels::Buffer y = testing::DeviceBytes(residual.size() * 2);
    testing::CopyToDevice(partials, device_partials.as<float>());
    testing::CopyToDevice(bias, device_bias.as<uint16_t>());
    testing::CopyToDevice(residual, y.as<uint16_t>());
    Must(kernels::cuda::LinearCombine({.shape = shape,
                                       .rows = kRows,
                                       .partials = device_partials.as<void>(),
                                       .partial_stride = kCount,
                                       .bias = device_bias.as<void>(),
                                       .y = y.as<void>(),
                                       .accumulate = true},
                                      nullptr));
    Must(cudaDeviceSynchronize());
    const auto round = [](float value) {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
    };
    std::vector<float> expected;
    for (size_t i = 0; i < kCount; ++i) {
      std::vector<float> parts;
      for (size_t s = 0; s < static_cast<size_t>(segments); ++s) {
        parts.push_back(partials[s * kCount + i]);
      }
      const float value =
          round(kernels::TreeSum(parts) + testing::FloatsOfBf16(bias)[i % kOutputs]);
      expected.push_back(round(testing::FloatsOfBf16(residual)[i] + value));
    }
    EXPECT_TRUE(testing::BitwiseEqual(
        testing::FloatsOfBf16(testing::CopyFromDevice(y.as<uint16_t>(), kCount)), expected,
        kOutputs))
        << segments << " segments";
  }
}

struct Layer {
  const char* name;
  LinearShape shape;
  bool accumulate = false;
};

// Layers of Qwen3-8B, and one with a bias as in Qwen2.5.
std::vector<Layer> Layers() {
  return {{"Qkv", DenseShape(6144, 4096)},
          {"OutputOneSegment", DenseShape(4096, 4096), true},
          {"OutputTwoSegments", DenseShape(4096, 4096, 2), true},
          {"DownOneSegment", DenseShape(4096, 12288), true},
          {"DownTwoSegments", DenseShape(4096, 12288, 2), true},
          {"DownEightSegments", DenseShape(4096, 12288, 8), true},
          {"Bias", DenseShape(1152, 896, 1, DType::kBf16, true)},
          {"LmHead", DenseShape(18944, 4096, 1, DType::kF32)}};
}

class LinearLayerTest : public testing::GpuTest, public ::testing::WithParamInterface<Layer> {};

INSTANTIATE_TEST_SUITE_P(Layers, LinearLayerTest, ::testing::ValuesIn(Layers()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(LinearLayerTest, EveryRowCountAndPlaceGivesTheBitsOfTheRowAlone) {
  const auto& [name, shape, accumulate] = GetParam();
  const CertificateTable table =
      Certified({shape}, {1, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, kRowsMax});
  const auto plan = LinearPlan::Create(Handle(), table, shape);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  LinearRig rig(shape, kRowsMax);
  rig.ProvideWorkspace(plan->WorkspaceBytes(kRowsMax, accumulate));
  rig.ComputeExpected(accumulate);
  std::vector<int> counts;
  for (int rows = 1; rows <= 256; ++rows) counts.push_back(rows);
  for (const int rows :
       {257, 300, 511, 513, 777, 1023, 1025, 1999, 2049, 3333, 4095, 4097, 6001, 8191, kRowsMax}) {
    counts.push_back(rows);
  }
  const auto run = [&](const LinearCall& call, cudaStream_t stream) {
    const absl::Status status = plan->Run(call, stream);
    ASSERT_TRUE(status.ok()) << status.message();
  };
  for (size_t i = 0; i < counts.size(); ++i) rig.Run(run, counts[i], i, nullptr);
  const std::vector<unsigned long long> differing = rig.Differing();
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(differing[i], 0u) << "elements at " << counts[i] << " rows";
  }
}

TEST_P(LinearLayerTest, EveryCertifiedAlgorithmRepeatsBesideABusyStream) {
  const auto& [name, shape, accumulate] = GetParam();
  auto certifier = Certifier::Create(
      Handle(), {.ladder = {testing::kRepeatedRows}, .own_kernels = testing::PathOfDevice()});
  ASSERT_TRUE(certifier.ok());
  testing::ExpectRepeats(**certifier, Handle(), shape, accumulate);
}

// Hopper's own kernel.
class OwnKernelTest : public testing::GpuTest {
 protected:
  void SetUp() override {
    const std::string reason = testing::WhyNoDevice(kernels::cuda::KernelPath::kSm90);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

// A small layer, so that tools that watch every access come to an end.
TEST_F(OwnKernelTest, EveryTilingGivesTheReferencesBits) {
  const auto tilings = kernels::cuda::Sm90Tilings();
  for (int tiling = 0; tiling < static_cast<int>(tilings.size()); ++tiling) {
    const auto& [tile_rows, outputs, segments, split, sharers] =
        tilings[static_cast<size_t>(tiling)];
    for (const DType output : {DType::kBf16, DType::kF32}) {
      const bool rounds =
          output == DType::kBf16;  // Sums as they are have neither bias nor residual.
      if (!rounds && segments != 1) continue;
      const LinearShape shape = DenseShape(outputs * sharers * 2, 512, segments, output, rounds);
      const int rows = tile_rows + 3;
      LinearRig rig(shape, rows);
      rig.ComputeExpected(rounds);
      Must(cudaDeviceSynchronize());
      rig.Run(
          [&](const LinearCall& call, cudaStream_t stream) {
            Must(kernels::cuda::LinearOnSm90({.shape = shape,
                                              .tiling = tiling,
                                              .rows = call.rows,
                                              .weight = call.weight,
                                              .bias = call.bias,
                                              .x = call.x,
                                              .y = call.y,
                                              .accumulate = rounds},
                                             stream));
          },
          rows, 0, nullptr);
      EXPECT_EQ(rig.Differing()[0], 0u) << "tiling " << tiling << (rounds ? "" : ", fp32");
    }
  }
}

class CertificationTest : public testing::GpuTest {};

// Seen with cuBLASLt 13.1 on an H200: an algorithm that reports no split of K follows another order
// at 12288 inputs and few rows.
TEST_F(CertificationTest, RefusesAnAlgorithmThatReportsNoSplitAndSplits) {
  if (testing::PathOfDevice() != kernels::cuda::KernelPath::kSm90 ||
      cublasLtGetVersion() != 130100) {
    GTEST_SKIP() << "not the GPU or the library that has this algorithm";
  }
  const LinearShape shape = DenseShape(4096, 12288);
  auto certifier =
      Certifier::Create(Handle(), {.ladder = {64}, .own_kernels = testing::PathOfDevice()});
  ASSERT_TRUE(certifier.ok());
  int refused = 0;
  for (const int rows : {1, 8, 16, 32, 64}) {
    const auto verdicts = (*certifier)->Examine(shape, rows);
    ASSERT_TRUE(verdicts.ok()) << verdicts.status().message();
    EXPECT_TRUE(verdicts->front().certified()) << "nothing is certified at " << rows << " rows";
    for (const Certifier::Verdict& verdict : *verdicts) {
      if (verdict.certified()) continue;
      ++refused;
      EXPECT_EQ(verdict.choice.traits.split_k, 1);
      EXPECT_EQ(verdict.choice.traits.id, 16) << "at " << rows << " rows";
    }
  }
  EXPECT_GT(refused, 0);
}

TEST_F(CertificationTest, SeesOneBitOfOneElement) {
  for (const auto& [shape, element_bits] :
       {std::pair(DenseShape(1024, 1024), 16), std::pair(DenseShape(1024, 1024, 2), 32)}) {
    // The last bit of the mantissa, of an element in the middle of the second row.
    const size_t bit = (1024 + 517) * static_cast<size_t>(element_bits);
    CertifierOptions options{.ladder = {16}, .own_kernels = testing::PathOfDevice()};
    options.disturb = [&](void* product, cudaStream_t stream) {
      return testing::FlipBit(product, bit, stream);
    };
    auto certifier = Certifier::Create(Handle(), options);
    ASSERT_TRUE(certifier.ok());
    const auto verdicts = (*certifier)->Examine(shape, 16);
    ASSERT_TRUE(verdicts.ok()) << verdicts.status().message();
    for (const Certifier::Verdict& verdict : *verdicts) {
      EXPECT_FALSE(verdict.certified());
      EXPECT_EQ(verdict.differing, 2u) << "one element in each of two looks";
    }
    CertificateTable table({});
    EXPECT_EQ((*certifier)->Certify(shape, table).code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(CertificationTest, ACapturedGraphHoldsTheKernelsOfItsCertificate) {
  const LinearShape shape = DenseShape(4096, 4096, 2);
  const auto table = kernels::cuda::LoadOrCertify(
      Handle(), {.shapes = {shape},
                 .options = {.ladder = {16, 256}, .own_kernels = std::nullopt},
                 .path = ""});
  ASSERT_TRUE(table.ok()) << table.status().message();
  const auto plan = LinearPlan::Create(Handle(), *table, shape);
  ASSERT_TRUE(plan.ok());
  LinearRig rig(shape, 256);
  rig.ProvideWorkspace(plan->WorkspaceBytes(256, false));
  rig.ComputeExpected(false);
  const kernels::cuda::Stream stream = kernels::cuda::CreateStream().value();
  auto graph = kernels::cuda::TimedGraph::Capture(
      1, [&](int, cudaStream_t on) { return plan->Run(rig.Call(9, 0, on), on); }, stream.get());
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(kernels::cuda::CheckForeignKernels(graph->kernels(), plan->ExpectedKernels(9)),
            absl::OkStatus());
  // Replaying gives the bits, too.
  ASSERT_TRUE(graph->Replay().ok());
  rig.Count(9, 0, 0, stream.get());
  EXPECT_EQ(rig.Differing()[0], 0u);
  // Not those of another rung, not fewer, not another grid.
  EXPECT_FALSE(
      kernels::cuda::CheckForeignKernels(graph->kernels(), plan->ExpectedKernels(200)).ok());
  EXPECT_FALSE(kernels::cuda::CheckForeignKernels(graph->kernels(), {}).ok());
  std::vector<KernelNode> other = plan->ExpectedKernels(9);
  for (KernelNode& node : other) ++node.grid[0];
  EXPECT_FALSE(kernels::cuda::CheckForeignKernels(graph->kernels(), other).ok());
}

TEST_F(CertificationTest, AFileServesTheSameEnvironmentAndNoOther) {
  const LinearShape shape = DenseShape(1024, 1024);
  const std::string path = absl::StrCat(::testing::TempDir(), "/lockstep_certificates");
  const kernels::cuda::CertificatesRequest request{
      .shapes = {shape},
      .options = {.ladder = {16}, .own_kernels = testing::PathOfDevice()},
      .path = path};
  const auto made = kernels::cuda::LoadOrCertify(Handle(), request);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const auto loaded = kernels::cuda::LoadOrCertify(Handle(), request);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->ToText(), made->ToText());
  // A table of another library, or of other kernels of ours, is not believed, but replaced.
  auto library = made->environment();
  library.library_digest[0] ^= 1;
  auto kernels = made->environment();
  kernels.own_kernels_digest[0] ^= 1;
  for (const auto& environment : {library, kernels}) {
    CertificateTable foreign(environment);
    Certificate planted = made->certificates().front();
    planted.rows = 17;
    foreign.Add(planted);
    ASSERT_TRUE(foreign.Save(path).ok());
    const auto renewed = kernels::cuda::LoadOrCertify(Handle(), request);
    ASSERT_TRUE(renewed.ok());
    EXPECT_EQ(renewed->Ladder(shape).back()->rows, 16);
  }
  std::remove(path.c_str());
}

TEST_F(CertificationTest, ALadderThatEndsBelowTheRowsIsMadeAnew) {
  const LinearShape shape = DenseShape(1024, 1024);
  const std::string path = absl::StrCat(::testing::TempDir(), "/lockstep_short_ladder");
  const auto top = [&](int rows) {
    const auto table = kernels::cuda::LoadOrCertify(
        Handle(), {.shapes = {shape},
                   .options = {.ladder = {8, rows}, .own_kernels = testing::PathOfDevice()},
                   .path = path});
    EXPECT_TRUE(table.ok()) << table.status().message();
    return table.ok() ? table->Ladder(shape).back()->rows : 0;
  };
  EXPECT_EQ(top(16), 16);
  EXPECT_EQ(top(64), 64);
  // A longer one serves those who ask for less.
  EXPECT_EQ(top(16), 64);
  std::remove(path.c_str());
}

TEST(CertificateTableTest, SurvivesItsTextAndNoChangeOfIt) {
  CertificateTable table({.gpu = "NVIDIA H200",
                          .multiprocessors = 132,
                          .library_version = 130100,
                          .library_digest = "abc",
                          .own_kernels_digest = "def"});
  table.Add(Certificate{.shape = DenseShape(4096, 12288, 2),
                        .rows = 24,
                        .workspace_bytes = 1024,
                        .traits = {.id = 66, .tile = 18, .stages = 35, .cluster_shape = 3},
                        .algorithm = {1, ~0ull, 3, 0, 5, 6, 7, 8},
                        .microseconds = 11.1,
                        .offered = 12,
                        .kernels = {{.name = "kernel", .grid = {1, 2, 3}, .block = {4, 5, 6}}}});
  table.Add(kernels::cuda::Refusal{.shape = DenseShape(8, 64), .rows = 1, .differing = 5});
  const std::string text = table.ToText();
  const auto read = CertificateTable::FromText(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, table);
  EXPECT_EQ(read->ToText(), text);
  for (const size_t at : {size_t{3}, text.size() / 2, text.size() - 2}) {
    std::string changed = text;
    changed[at] ^= 1;
    EXPECT_EQ(CertificateTable::FromText(changed).status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(CertificateTable::FromText(text.substr(0, text.size() / 2)).status().code(),
            absl::StatusCode::kDataLoss);
}

// As workers do that share a file and start together.
TEST(CertificateTableTest, ManySaveAtOnceAndOneOfThemStays) {
  constexpr int kWriters = 4;
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "lockstep_saved_certificates";
  std::filesystem::create_directory(folder);
  const std::string path = folder / "certificates.txt";
  std::vector<CertificateTable> tables(kWriters, CertificateTable({.gpu = "NVIDIA H200"}));
  for (int writer = 0; writer < kWriters; ++writer) {
    // Of different lengths, so that parts of two make none.
    for (int rows = 1; rows <= 100 * (writer + 1); ++rows) {
      tables[writer].Add(Certificate{.shape = DenseShape(1024, 1024), .rows = rows});
    }
  }
  {
    std::vector<std::jthread> writers;
    for (const CertificateTable& table : tables) {
      writers.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          EXPECT_EQ(table.Save(path), absl::OkStatus());
          const auto loaded = CertificateTable::Load(path);
          ASSERT_TRUE(loaded.ok()) << loaded.status().message();
          EXPECT_TRUE(std::ranges::count(tables, *loaded) == 1);
        }
      });
    }
  }
  // Nothing else is left there.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep
