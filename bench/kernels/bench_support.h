#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/cpu/cpu_kernel_set.h"
#include "tests/support/philox_data.h"

namespace lockstep::bench {

// As many as the machine has cores.
inline std::unique_ptr<kernels::KernelSet> MakeKernels() {
  return kernels::cpu::CreateCpuKernelSet({.threads = 0}).value();
}

// A packed [outputs, inputs] matrix, made once for the whole run: the library calls a bench anew
// for each repetition, and packing takes longer than what is measured.
inline const kernels::LinearWeight& SharedWeight(kernels::KernelSet& kernels, int outputs,
                                                 int inputs, kernels::DType dtype,
                                                 int segments = 1) {
  static std::map<std::tuple<int, int, kernels::DType, int>, std::unique_ptr<kernels::LinearWeight>>
      made;
  auto& weight = made[{outputs, inputs, dtype, segments}];
  if (weight != nullptr) return *weight;
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
  weight = kernels.PackLinear({&tensor, 1}, {}, {.segments = segments}).value();
  return *weight;
}

}  // namespace lockstep::bench
