#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/cpu_kernel_set.h"
#include "tests/support/philox_data.h"

namespace lockstep::bench {

// As many as the machine has cores.
inline std::unique_ptr<kernels::KernelSet> MakeKernels() {
  return kernels::cpu::CreateCpuKernelSet({.threads = 0}).value();
}

// A packed [outputs, inputs] matrix.
inline std::unique_ptr<kernels::LinearWeight> MakeWeight(kernels::KernelSet& kernels, int outputs,
                                                         int inputs, kernels::DType dtype,
                                                         int segments = 1) {
  const size_t count = static_cast<size_t>(outputs) * static_cast<size_t>(inputs);
  // A short period: drawing every element would take longer than the bench.
  std::vector<float> values = testing::UniformData(1, 65537);
  values.reserve(count);
  while (values.size() < count) values.push_back(values[values.size() - 65537]);
  std::vector<uint16_t> bits;
  if (dtype == kernels::DType::kBf16) bits = testing::Bf16Data(values);
  const void* data = bits.empty() ? static_cast<const void*>(values.data())
                                  : static_cast<const void*>(bits.data());
  const kernels::HostTensor tensor{"w", data, dtype, {outputs, inputs}};
  return kernels.PackLinear({&tensor, 1}, {}, segments).value();
}

}  // namespace lockstep::bench
