#include "kernels/cuda/runtime/staged_copy.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

// Bytes [begin, begin + bytes) of the rows without their gaps.
void Pack(const ByteRows& rows, size_t begin, size_t bytes, char* packed) {
  while (bytes > 0) {
    const size_t row = begin / rows.width;
    const size_t within = begin % rows.width;
    const size_t run = std::min(bytes, rows.width - within);
    std::memcpy(packed, static_cast<const char*>(rows.data) + row * rows.stride + within, run);
    begin += run;
    packed += run;
    bytes -= run;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagedCopy>> StagedCopy::Create(cudaStream_t stream) {
  std::unique_ptr<StagedCopy> copy(new StagedCopy(stream));
  for (Stage& stage : copy->stages_) {
    LOCKSTEP_ASSIGN_OR_RETURN(stage.buffer, AllocatePinned(kBufferBytes, "copying weights"));
    LOCKSTEP_ASSIGN_OR_RETURN(stage.read, CreateEvent());
  }
  return copy;
}

StagedCopy::~StagedCopy() {
  // An error here is one of the stream, which its owner finds too.
  for (Stage& stage : stages_) {
    if (stage.read != nullptr) cudaEventSynchronize(stage.read.get());
  }
}

absl::Status StagedCopy::Rows(void* device, const ByteRows& rows, std::string_view what) {
  const auto named = [&](cudaError_t error) {
    if (error == cudaSuccess) return absl::OkStatus();
    return StatusOfCuda(error, absl::StrCat(std::string(what), ": copying to the device").c_str());
  };
  const size_t total = rows.count * rows.width;
  for (size_t begin = 0; begin < total; begin += kBufferBytes) {
    const size_t bytes = std::min(kBufferBytes, total - begin);
    const Stage& stage = stages_[next_];
    next_ = (next_ + 1) % stages_.size();
    LOCKSTEP_RETURN_IF_ERROR(named(cudaEventSynchronize(stage.read.get())));
    Pack(rows, begin, bytes, stage.buffer.as<char>());
    LOCKSTEP_RETURN_IF_ERROR(
        named(cudaMemcpyAsync(static_cast<char*>(device) + begin, stage.buffer.as<void>(), bytes,
                              cudaMemcpyHostToDevice, stream_)));
    LOCKSTEP_RETURN_IF_ERROR(named(cudaEventRecord(stage.read.get(), stream_)));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::kernels::cuda
