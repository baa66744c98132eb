#include "services/worker/model/tensor_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace lockstep::worker {
namespace {

// More read faster than one thread copies.
constexpr int kCheckThreads = 8;

absl::Status Refuse(const Checkpoint::Tensor& tensor, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file->name(), ": tensor \"", tensor.entry->name, "\": ", what));
}

std::string ShapeText(std::span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::optional<kernels::DType> TypeOf(const std::string& stored) {
  if (stored == "BF16") return kernels::DType::kBf16;
  if (stored == "F32") return kernels::DType::kF32;
  return std::nullopt;
}

}  // namespace

TensorReader::TensorReader(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint),
      checks_(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kCheckThreads)) {
}

void TensorReader::ReadAhead(std::string_view prefix) {
  const auto& tensors = checkpoint_.tensors();
  for (auto it = tensors.lower_bound(prefix); it != tensors.end(); ++it) {
    if (!std::string_view(it->first).starts_with(prefix)) break;
    const std::optional<kernels::DType> dtype = TypeOf(it->second.entry->dtype);
    if (dtype.has_value() && !digests_.contains(it->first)) checks_.Begin(it->second, *dtype);
  }
}

absl::StatusOr<kernels::HostTensor> TensorReader::Take(const std::string& name,
                                                       const std::vector<int64_t>& shape) {
  const Checkpoint::Tensor* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", name, "\" of shape ", ShapeText(shape), " is missing"));
  }
  mapped_.push_back(*tensor);
  if (tensor->entry->shape != shape) {
    return Refuse(*tensor, absl::StrCat("shape is ", ShapeText(tensor->entry->shape),
                                        "; config.json calls for ", ShapeText(shape)));
  }
  const std::optional<kernels::DType> dtype = TypeOf(tensor->entry->dtype);
  if (!dtype.has_value()) {
    return Refuse(*tensor,
                  absl::StrCat("dtype is ", tensor->entry->dtype, "; only BF16 and F32 are read"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(digests_[name], checks_.Take(*tensor, *dtype));
  return kernels::HostTensor{.name = name,
                             .data = tensor->file->Data(*tensor->entry).data(),
                             .dtype = *dtype,
                             .shape = shape};
}

absl::Status TensorReader::TakeCopy(const std::string& name, const std::string& original) {
  const Checkpoint::Tensor* copy = checkpoint_.Find(name);
  const Checkpoint::Tensor* source = checkpoint_.Find(original);
  if (copy == nullptr || source == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", copy == nullptr ? name : original, "\" is missing"));
  }
  mapped_.push_back(*copy);
  copies_.push_back(name);
  const std::span<const std::byte> copy_data = copy->file->Data(*copy->entry);
  const std::span<const std::byte> source_data = source->file->Data(*source->entry);
  if (copy->entry->dtype != source->entry->dtype || copy->entry->shape != source->entry->shape ||
      std::memcmp(copy_data.data(), source_data.data(), copy_data.size()) != 0) {
    return Refuse(*copy, absl::StrCat("differs from \"", original,
                                      "\", though config.json ties them (tie_word_embeddings)"));
  }
  return absl::OkStatus();
}

void TensorReader::DropPages() {
  for (const Checkpoint::Tensor& tensor : mapped_) tensor.file->DropPages(*tensor.entry);
  mapped_.clear();
}

absl::Status TensorReader::CheckAllTaken() const {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (digests_.contains(name)) continue;
    if (std::find(copies_.begin(), copies_.end(), name) != copies_.end()) continue;
    return Refuse(tensor, "is not part of the model that config.json describes");
  }
  return absl::OkStatus();
}

}  // namespace lockstep::worker
