#include "tests/gpu/linear_rig.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/linear_rung.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/test_streams.h"
#include "tests/support/philox_data.h"

namespace lockstep::testing {
namespace {

using kernels::DType;
using kernels::SizeOf;
using kernels::cuda::LinearShape;

constexpr uint16_t kNan = 0x7FC0;
constexpr uint16_t kHuge = 0x7F00;

// Row 0 and every second one after it is the probe, of values from 2^-12 to 2^12.
std::vector<uint16_t> Rows(const LinearShape& shape, int rows) {
  const size_t width = static_cast<size_t>(shape.x_stride);
  const std::vector<uint16_t> probe = Bf16Data(WideData(7, width));
  const std::vector<uint16_t> random = Bf16Data(UniformData(8, 4 * width));
  std::vector<uint16_t> x(static_cast<size_t>(rows) * width);
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    const auto to = x.begin() + static_cast<ptrdiff_t>(row * width);
    if (row % 2 == 0) {
      std::copy(probe.begin(), probe.end(), to);
    } else if (row / 2 % 3 == 0) {
      const auto from = random.begin() + static_cast<ptrdiff_t>(row / 2 % 4 * width);
      std::copy(from, from + static_cast<ptrdiff_t>(width), to);
    } else {
      std::fill_n(to, width, row / 2 % 3 == 1 ? kNan : kHuge);
    }
  }
  return x;
}

void Upload(const std::vector<uint16_t>& host, kernels::Buffer& buffer) {
  buffer = DeviceBytes(host.size() * sizeof(uint16_t));
  CopyToDevice(host, buffer.as<uint16_t>());
}

}  // namespace

cublasLtHandle_t Handle() {
  static const kernels::cuda::LtHandle handle = kernels::cuda::CreateLtHandle().value();
  return handle.get();
}

kernels::cuda::CertificateTable Certified(const std::vector<LinearShape>& shapes,
                                          std::vector<int> ladder) {
  auto table = kernels::cuda::LoadOrCertify(
      Handle(), {.shapes = shapes,
                 .options = {.ladder = std::move(ladder), .own_kernels = PathOfDevice()},
                 .path = ""});
  LOCKSTEP_CHECK(table.ok()) << table.status().message();
  return *std::move(table);
}

LinearShape DenseShape(int outputs, int inputs, int segments, DType output, bool bias) {
  return {.outputs = outputs,
          .inputs = inputs,
          .segments = segments,
          .output = output,
          .bias = bias,
          .x_stride = inputs,
          .y_stride = outputs};
}

LinearRig::LinearRig(const LinearShape& shape, int rows_max) : shape_(shape), rows_max_(rows_max) {
  // The longest call, its padding, and one row for the shifted batch.
  Upload(Rows(shape, rows_max + 1), x_);
  const size_t elements = static_cast<size_t>(shape.outputs) * static_cast<size_t>(shape.inputs);
  weight_ = DeviceBytes(elements * sizeof(uint16_t));
  Must(kernels::cuda::FillUniform(weight_.as<void>(), elements, 9, nullptr));
  if (shape.bias) Upload(Bf16Data(UniformData(10, static_cast<size_t>(shape.outputs))), bias_);
  const size_t width = static_cast<size_t>(shape.y_stride);
  const std::vector<uint16_t> residual = Bf16Data(UniformData(11, width, 8));
  std::vector<uint16_t> rows;
  for (int row = 0; row < rows_max; ++row)
    rows.insert(rows.end(), residual.begin(), residual.end());
  Upload(rows, residual_);
  y_ = DeviceBytes(static_cast<size_t>(rows_max) * width * SizeOf(shape.output));
  expected_ = DeviceBytes(width * SizeOf(shape.output));
  counters_ = DeviceBytes(kCounters * sizeof(unsigned long long));
  Must(cudaMemset(counters_.as<void>(), 0, counters_.bytes()));
  Must(cudaDeviceSynchronize());
}

void LinearRig::ComputeExpected(bool accumulate) {
  accumulate_ = accumulate;
  const bool apart = accumulate || shape_.segments > 1;
  const size_t width = static_cast<size_t>(shape_.y_stride);
  const kernels::Buffer product =
      DeviceBytes(static_cast<size_t>(shape_.segments) * width * sizeof(float));
  Must(cudaMemcpy(expected_.as<void>(), residual_.as<void>(), width * SizeOf(DType::kBf16),
                  cudaMemcpyDeviceToDevice));
  Must(
      kernels::cuda::LinearReference({.shape = shape_,
                                      .rows = 1,
                                      .weight = weight_.as<void>(),
                                      .bias = shape_.bias ? bias_.as<void>() : nullptr,
                                      .x = x_.as<void>(),
                                      .product = apart ? product.as<void>() : expected_.as<void>()},
                                     nullptr));
  if (apart) {
    Must(kernels::cuda::LinearCombine({.shape = shape_,
                                       .rows = 1,
                                       .partials = product.as<void>(),
                                       .partial_stride = static_cast<size_t>(shape_.outputs),
                                       .bias = shape_.bias ? bias_.as<void>() : nullptr,
                                       .y = expected_.as<void>(),
                                       .accumulate = accumulate},
                                      nullptr));
  }
  Must(cudaDeviceSynchronize());
}

kernels::cuda::LinearCall LinearRig::Call(int rows, int start, cudaStream_t stream) {
  const size_t y_bytes =
      static_cast<size_t>(rows) * static_cast<size_t>(shape_.y_stride) * SizeOf(shape_.output);
  if (accumulate_) {
    Must(cudaMemcpyAsync(y_.as<void>(), residual_.as<void>(), y_bytes, cudaMemcpyDeviceToDevice,
                         stream));
  } else {
    Must(cudaMemsetAsync(y_.as<void>(), 0xFF, y_bytes, stream));
  }
  return {
      .weight = weight_.as<void>(),
      .bias = shape_.bias ? bias_.as<void>() : nullptr,
      .rows = rows,
      .x = x_.as<uint16_t>() + static_cast<size_t>(start) * static_cast<size_t>(shape_.x_stride),
      .y = y_.as<void>(),
      .accumulate = accumulate_,
      .workspace = workspace_.as<void>(),
      .workspace_bytes = workspace_.bytes()};
}

void LinearRig::Count(int rows, int start, size_t index, cudaStream_t stream) {
  const int probes = (rows + 1 - start) / 2;
  if (probes == 0) return;
  const size_t width = static_cast<size_t>(shape_.y_stride);
  Must(kernels::cuda::CountDifferences(
      {.a = y_.as<uint8_t>() + static_cast<size_t>(start) * width * SizeOf(shape_.output),
       .b = expected_.as<void>(),
       .a_stride = 2 * width,
       .b_stride = 0,
       .rows = probes,
       .columns = shape_.outputs,
       .type = shape_.output},
      counters_.as<unsigned long long>() + index, stream));
}

void LinearRig::ProvideWorkspace(size_t bytes) { workspace_ = DeviceBytes(bytes + 1); }

std::vector<unsigned long long> LinearRig::Differing() {
  Must(cudaDeviceSynchronize());
  return CopyFromDevice(counters_.as<unsigned long long>(), kCounters);
}

void ExpectRepeats(kernels::cuda::Certifier& certifier, cublasLtHandle_t handle,
                   const LinearShape& shape, bool accumulate) {
  LinearRig rig(shape, kRepeatedRows);
  rig.ComputeExpected(accumulate);
  const kernels::Buffer noise = DeviceBytes(size_t{256} << 20);
  const TestStream busy;
  const TestStream stream;
  std::vector<std::string> names;
  for (const int rows : {1, 8, 64, 160, kRepeatedRows}) {
    const auto verdicts = certifier.Examine(shape, rows);
    ASSERT_TRUE(verdicts.ok()) << verdicts.status().message();
    for (const kernels::cuda::Certifier::Verdict& verdict : *verdicts) {
      if (!verdict.certified()) continue;
      const auto rung = kernels::cuda::LinearRung::Create(handle, shape, rows, verdict.choice);
      ASSERT_TRUE(rung.ok()) << rung.status().message();
      rig.ProvideWorkspace(rung->WorkspaceBytes(accumulate));
      for (int repeat = 0; repeat < 20; ++repeat) {
        Must(cudaMemsetAsync(noise.as<void>(), repeat, noise.bytes(), busy.get()));
        rig.Run(
            [&](const kernels::cuda::LinearCall& call, cudaStream_t on) {
              const absl::Status status = rung->Enqueue(call, on);
              ASSERT_TRUE(status.ok()) << status.message();
            },
            rows, names.size(), stream.get());
      }
      Must(cudaDeviceSynchronize());
      names.push_back(absl::StrCat("algorithm ", verdict.choice.traits.id, " at ", rows, " rows"));
    }
  }
  ASSERT_FALSE(names.empty());
  const std::vector<unsigned long long> differing = rig.Differing();
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(differing[i], 0u) << names[i];
}

}  // namespace lockstep::testing
