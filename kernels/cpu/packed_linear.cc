#include "kernels/cpu/packed_linear.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/api/bf16.h"
#include "kernels/cpu/scratch.h"

namespace lockstep::kernels::cpu {
namespace {

absl::Status CheckMatrix(const HostTensor& tensor, int64_t inputs) {
  if (tensor.shape.size() != 2 || tensor.dtype == DType::kI32) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.name, ": a linear weight is a matrix of f32 or bf16"));
  }
  if (tensor.shape[1] != inputs) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.name, ": ", tensor.shape[1],
                                                   " inputs, stacked on a matrix of ", inputs));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> StackBiases(std::span<const HostTensor> weights,
                                               std::span<const HostTensor> biases) {
  std::vector<float> stacked;
  if (biases.empty()) return stacked;
  if (biases.size() != weights.size()) {
    return absl::InvalidArgumentError(absl::StrCat(weights[0].name, ": ", biases.size(),
                                                   " biases for ", weights.size(), " matrices"));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const HostTensor& bias = biases[i];
    if (bias.shape != std::vector<int64_t>{weights[i].shape[0]} || bias.dtype == DType::kI32) {
      return absl::InvalidArgumentError(
          absl::StrCat(bias.name, ": a bias is a vector of the ", weights[i].shape[0], " outputs"));
    }
    for (int64_t o = 0; o < bias.shape[0]; ++o) {
      stacked.push_back(LoadElement(bias.data, bias.dtype, static_cast<size_t>(o)));
    }
  }
  return stacked;
}

// Copies one panel, element by element through `convert`, from the stacked matrices.
template <typename T, typename Convert>
void PackPanel(std::span<const HostTensor> weights, int64_t first_output, size_t inputs,
               const Convert& convert, T* panel) {
  std::fill(panel, panel + inputs * PackedLinear::kPanel, T{});
  int64_t tensor_begin = 0;
  for (const HostTensor& tensor : weights) {
    const int64_t begin = std::max(first_output, tensor_begin);
    const int64_t end =
        std::min<int64_t>(first_output + PackedLinear::kPanel, tensor_begin + tensor.shape[0]);
    for (int64_t o = begin; o < end; ++o) {
      const size_t row = static_cast<size_t>(o - tensor_begin) * RowStride(tensor);
      T* lane = panel + (o - first_output);
      for (size_t i = 0; i < inputs; ++i) {
        lane[i * PackedLinear::kPanel] = convert(tensor, row + i);
      }
    }
    tensor_begin += tensor.shape[0];
  }
}

uint16_t BitsOfBf16(const HostTensor& tensor, size_t index) {
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(tensor.data) + index * sizeof(bits), sizeof(bits));
  return bits;
}

float ToFloat(const HostTensor& tensor, size_t index) {
  return LoadElement(tensor.data, tensor.dtype, index);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLinear>> PackedLinear::Create(
    std::span<const HostTensor> weights, std::span<const HostTensor> biases,
    const LinearLayout& layout, ThreadPool& pool) {
  if (weights.empty() || weights[0].shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(weights.empty() ? "linear" : weights[0].name, ": needs a matrix"));
  }
  const int64_t inputs = weights[0].shape[1];
  int64_t outputs = 0;
  bool all_bf16 = true;
  for (const HostTensor& tensor : weights) {
    LOCKSTEP_RETURN_IF_ERROR(CheckMatrix(tensor, inputs));
    outputs += tensor.shape[0];
    all_bf16 = all_bf16 && tensor.dtype == DType::kBf16;
  }
  const DType dtype = all_bf16 ? DType::kBf16 : DType::kF32;
  LOCKSTEP_ASSIGN_OR_RETURN(const ReductionOrder order,
                            ReductionOrder::Create(weights[0].name, {.n = static_cast<int>(outputs),
                                                                     .k = static_cast<int>(inputs),
                                                                     .dtype = dtype,
                                                                     .segments = layout.segments}));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<float> bias, StackBiases(weights, biases));
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  const size_t panel_elements = static_cast<size_t>(inputs) * kPanel;
  const size_t bytes = static_cast<size_t>(panels) * panel_elements * SizeOf(dtype);
  Buffer packed = AllocateAligned(bytes);
  if (packed.bytes() != bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(weights[0].name, ": no memory for ", bytes, " bytes of packed weights"));
  }
  pool.ParallelFor(panels, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const size_t offset = static_cast<size_t>(panel) * panel_elements;
      if (all_bf16) {
        PackPanel(weights, panel * kPanel, static_cast<size_t>(inputs), BitsOfBf16,
                  packed.as<uint16_t>() + offset);
      } else {
        PackPanel(weights, panel * kPanel, static_cast<size_t>(inputs), ToFloat,
                  packed.as<float>() + offset);
      }
    }
  });
  return std::unique_ptr<PackedLinear>(std::make_unique<PackedLinear>(PackedLinear(
      static_cast<int>(outputs), layout, order, dtype, std::move(packed), std::move(bias))));
}

}  // namespace lockstep::kernels::cpu
