#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "gtest/gtest.h"
#include "kernels/api/buffer.h"
#include "kernels/cuda/kernel_path.h"
#include "kernels/cuda/runtime/device_memory.h"

// What tests on a device share.
namespace lockstep::testing {

// A CUDA call of a test that fails ends the program: what follows would mean nothing.
inline void Must(cudaError_t error) {
  LOCKSTEP_CHECK(error == cudaSuccess)
      << cudaGetErrorName(error) << " " << cudaGetErrorString(error);
}

// Why the kernels of a path cannot run here; empty when they can.
inline std::string WhyNoDevice(
    kernels::cuda::KernelPath path = kernels::cuda::KernelPath::kPortable) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return absl::StrCat("no CUDA device: ", cudaGetErrorString(error));
  }
  if (count == 0) return "no CUDA device";
  cudaDeviceProp properties;
  Must(cudaGetDeviceProperties(&properties, 0));
  const bool sm90 = properties.major == 9 && properties.minor == 0;
  if (path == kernels::cuda::KernelPath::kSm90 ? sm90 : properties.major >= 8) return "";
  return absl::StrCat("the kernels are not for a ", properties.name, " of compute capability ",
                      properties.major, ".", properties.minor);
}

// The kernels that the device's compute capability chooses.
inline kernels::cuda::KernelPath PathOfDevice() {
  using kernels::cuda::KernelPath;
  return WhyNoDevice(KernelPath::kSm90).empty() ? KernelPath::kSm90 : KernelPath::kPortable;
}

// Row counts at which a row must be what it is alone: all up to 256, then odd ones.
inline std::vector<size_t> BatchSizes() {
  std::vector<size_t> sizes;
  for (size_t rows = 1; rows <= 256; ++rows) sizes.push_back(rows);
  for (const size_t rows : {257, 511, 777, 1025, 2049, 4099, 8191}) sizes.push_back(rows);
  return sizes;
}

// Every case skips itself, with the reason, where there is no device for it.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = WhyNoDevice(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// Cases for the kernels of both paths.
class GpuPathTest : public GpuTest,
                    public ::testing::WithParamInterface<kernels::cuda::KernelPath> {
 protected:
  void SetUp() override {
    if (const std::string reason = WhyNoDevice(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

inline std::string NameOf(kernels::cuda::KernelPath path) {
  return path == kernels::cuda::KernelPath::kSm90 ? "Sm90" : "Portable";
}

inline auto BothPaths() {
  return ::testing::Values(kernels::cuda::KernelPath::kSm90, kernels::cuda::KernelPath::kPortable);
}

inline std::string NameOfPath(const ::testing::TestParamInfo<kernels::cuda::KernelPath>& info) {
  return NameOf(info.param);
}

inline kernels::Buffer DeviceBytes(size_t bytes) {
  auto buffer = kernels::cuda::AllocateDevice(bytes, "test data");
  LOCKSTEP_CHECK(buffer.ok()) << buffer.status().message();
  return *std::move(buffer);
}

// Done when it returns, for every stream, which a copy from pageable memory alone need not be.
template <typename T>
void CopyToDevice(const std::vector<T>& host, T* device) {
  Must(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  Must(cudaStreamSynchronize(nullptr));
}

template <typename T>
std::vector<T> CopyFromDevice(const T* device, size_t count) {
  std::vector<T> host(count);
  Must(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

}  // namespace lockstep::testing
