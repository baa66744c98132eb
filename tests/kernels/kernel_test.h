#pragma once

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/api/kernel_set.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "tests/support/bitwise.h"
#include "tests/support/philox_data.h"
#include "tests/support/tolerance.h"

namespace lockstep::kernels {

// The instruction sets that the CPU backend was compiled for and this machine has, and thread
// counts that cut work evenly, unevenly, and into more parts than there are.
struct Configuration {
  int64_t target = 0;
  int threads = 1;
};

inline std::vector<Configuration> AllConfigurations() {
  std::vector<Configuration> all;
  for (const int64_t target : {HWY_SCALAR, HWY_AVX2, HWY_AVX3}) {
    if (((hwy::SupportedTargets() | HWY_SCALAR) & target) == 0) continue;
    for (const int threads : {1, 2, 3, 7}) all.push_back({target, threads});
  }
  return all;
}

inline std::string NameOf(const ::testing::TestParamInfo<Configuration>& info) {
  return std::string(hwy::TargetName(info.param.target)) + "Threads" +
         std::to_string(info.param.threads);
}

// Forces one instruction set for as long as it lives.
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) { Choose(target); }
  ~ScopedTarget() { Choose(0); }
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// An op's test, run once for each configuration.
class KernelTest : public ::testing::TestWithParam<Configuration> {
 protected:
  KernelTest()
      : target_(GetParam().target),
        kernels_(cpu::CreateCpuKernelSet({.threads = GetParam().threads}).value()) {}

  // A copy of host data in the backend's memory; alive until the test ends.
  template <typename T>
  T* Put(const std::vector<T>& host) {
    buffers_.push_back(kernels_->Allocate(host.size() * sizeof(T), "test data").value());
    kernels_->Upload(host.data(), host.size() * sizeof(T), buffers_.back().template as<void>());
    return buffers_.back().template as<T>();
  }
  template <typename T>
  std::vector<T> Get(const T* device, size_t count) {
    EXPECT_TRUE(kernels_->Synchronize().ok());
    std::vector<T> host(count);
    kernels_->Download(device, count * sizeof(T), host.data());
    return host;
  }
  // The scalar reference is slow: large shapes are for the vector targets.
  bool slow_target() const { return GetParam().target == HWY_SCALAR; }

  KernelSet& kernels() { return *kernels_; }

 private:
  ScopedTarget target_;
  std::unique_ptr<KernelSet> kernels_;
  std::vector<Buffer> buffers_;
};

}  // namespace lockstep::kernels
