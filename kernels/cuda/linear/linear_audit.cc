#include "kernels/cuda/linear/linear_audit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/linear/linear_audit_kernels.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_memory.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr char kWhat[] = "audit";
constexpr size_t kHalves = 2;
constexpr size_t kCopies = LinearAudit::kCopiesPerHalf;
constexpr size_t kRowsPerHalf = kCopies * LinearAudit::kRowsPerCopy;

int RowsCopied(int rows) { return std::min(rows, LinearAudit::kRowsPerCopy); }

// Whether a product is computed apart from what follows it.
bool IsApart(const LinearShape& shape, bool accumulate) { return accumulate || shape.segments > 1; }

absl::StatusOr<Buffer> AllocateZeros(size_t bytes, cudaStream_t stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer buffer, AllocateDevice(bytes, kWhat));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemsetAsync(buffer.as<void>(), 0, bytes, stream), kWhat));
  return buffer;
}

std::string Describe(const AuditedCall& call) {
  return absl::StrCat("a linear layer of ", call.shape.outputs, " outputs and ", call.shape.inputs,
                      " inputs, in a step of ", call.rows, " rows");
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinearAudit>> LinearAudit::Create(
    std::span<const LinearShape> shapes) {
  std::unique_ptr<LinearAudit> audit(new LinearAudit);
  LOCKSTEP_ASSIGN_OR_RETURN(audit->side_, CreateStream());
  LOCKSTEP_RETURN_IF_ERROR(audit->Allocate(shapes));
  for (Half& half : audit->halves_) {
    LOCKSTEP_ASSIGN_OR_RETURN(half.copied, CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(half.compared, CreateEvent());
  }
  return audit;
}

LinearAudit::~LinearAudit() {
  if (side_ != nullptr) cudaStreamSynchronize(side_.get());
}

absl::Status LinearAudit::Allocate(std::span<const LinearShape> shapes) {
  size_t product_bytes = 0;
  for (const LinearShape& shape : shapes) {
    if (!IsSupported(shape)) {
      return absl::InvalidArgumentError(
          absl::StrCat("audit of a linear layer of ", shape.outputs, " x ", shape.inputs));
    }
    const size_t outputs = static_cast<size_t>(shape.outputs);
    x_bytes_ = std::max(x_bytes_, static_cast<size_t>(shape.inputs) * SizeOf(DType::kBf16));
    y_bytes_ = std::max(y_bytes_, (outputs * SizeOf(shape.output) + 31) / 32 * 32);
    if (shape.output == DType::kF32) continue;  // Never apart.
    product_bytes = std::max(product_bytes, static_cast<size_t>(shape.segments) * kRowsPerHalf *
                                                outputs * SizeOf(ProductType(shape)));
  }
  const size_t rows = kHalves * kRowsPerHalf;
  cudaStream_t stream = side_.get();
  LOCKSTEP_ASSIGN_OR_RETURN(x_, AllocateZeros(rows * x_bytes_, stream));
  LOCKSTEP_ASSIGN_OR_RETURN(y_, AllocateZeros(rows * y_bytes_, stream));
  LOCKSTEP_ASSIGN_OR_RETURN(expected_, AllocateZeros(rows * y_bytes_, stream));
  LOCKSTEP_ASSIGN_OR_RETURN(product_, AllocateZeros(std::max<size_t>(product_bytes, 1), stream));
  LOCKSTEP_ASSIGN_OR_RETURN(clock_, AllocateZeros(sizeof(AuditClock), stream));
  LOCKSTEP_ASSIGN_OR_RETURN(differing_,
                            AllocateZeros(kHalves * kCopies * sizeof(uint32_t), stream));
  LOCKSTEP_ASSIGN_OR_RETURN(differing_host_,
                            AllocatePinned(kHalves * kCopies * sizeof(uint32_t), kWhat));
  // The first copies come from another stream, and must not be zeroed after that.
  return StatusOfCuda(cudaStreamSynchronize(stream), kWhat);
}

absl::Status LinearAudit::Save(const LinearShape& shape, const LinearCall& call, bool before,
                               cudaStream_t stream) {
  const size_t element = SizeOf(shape.output);
  const AuditedMatrix y = {.matrix = call.y,
                           .ring = (before ? expected_ : y_).as<void>(),
                           .stride_bytes = static_cast<size_t>(shape.y_stride) * element,
                           .row_bytes = static_cast<size_t>(shape.outputs) * element,
                           .ring_stride_bytes = y_bytes_};
  const size_t x_element = SizeOf(DType::kBf16);
  const AuditedMatrix x = {.matrix = call.x,
                           .ring = x_.as<void>(),
                           .stride_bytes = static_cast<size_t>(shape.x_stride) * x_element,
                           .row_bytes = static_cast<size_t>(shape.inputs) * x_element,
                           .ring_stride_bytes = x_bytes_};
  return StatusOfCuda(CopyAuditedRows({.first = y,
                                       .second = before ? AuditedMatrix{} : x,
                                       .clock = clock_.as<AuditClock>(),
                                       .rows = call.rows,
                                       .rows_copied = RowsCopied(call.rows),
                                       .rows_per_slot = kRowsPerCopy,
                                       .slots = static_cast<int>(kHalves * kCopies),
                                       .advances = !before},
                                      stream),
                      kWhat);
}

absl::Status LinearAudit::EnqueueBefore(const LinearShape& shape, const LinearCall& call,
                                        cudaStream_t stream) {
  return call.accumulate ? Save(shape, call, /*before=*/true, stream) : absl::OkStatus();
}

absl::Status LinearAudit::EnqueueAfter(const LinearShape& shape, const LinearCall& call,
                                       cudaStream_t stream) {
  return Save(shape, call, /*before=*/false, stream);
}

void LinearAudit::CountCopy(const AuditedCall& call) {
  Half& half = halves_[filling_];
  LOCKSTEP_CHECK(!half.comparing && half.copies.size() < kCopies);
  half.copies.push_back(call);
}

absl::Status LinearAudit::Advance(cudaStream_t stream) {
  const size_t other = 1 - filling_;
  absl::Status found;  // What differs is told once the next copies have their place.
  if (halves_[other].comparing) {
    const cudaError_t error = cudaEventQuery(halves_[other].compared.get());
    if (error == cudaSuccess) {
      found = Collect(other);
    } else if (error == cudaErrorNotReady) {
      cudaGetLastError();  // It is no failure, and must not be found by who asks next.
    } else {
      return StatusOfCuda(error, kWhat);
    }
  }
  if (halves_[filling_].copies.size() < kCopies) return found;
  // The next copies go where that comparison reads.
  found.Update(WaitAndCollect(other));
  found.Update(Compare(filling_, stream));
  filling_ = other;
  halves_[other].copies.clear();
  halves_[other].compared_count = 0;
  return found;
}

absl::Status LinearAudit::Finish(cudaStream_t stream) {
  for (const size_t index : {1 - filling_, filling_}) {
    LOCKSTEP_RETURN_IF_ERROR(Compare(index, stream));
    LOCKSTEP_RETURN_IF_ERROR(WaitAndCollect(index));
  }
  return absl::OkStatus();
}

absl::Status LinearAudit::Compare(size_t index, cudaStream_t stream) {
  Half& half = halves_[index];
  if (half.comparing || half.compared_count == half.copies.size()) return absl::OkStatus();
  half.comparing = true;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaEventRecord(half.copied.get(), stream), kWhat));
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaStreamWaitEvent(side_.get(), half.copied.get(), 0), kWhat));
  const size_t bytes = kCopies * sizeof(uint32_t);
  uint32_t* differing = differing_.as<uint32_t>() + index * kCopies;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaMemsetAsync(differing, 0, bytes, side_.get()), kWhat));
  size_t end = half.compared_count;
  for (size_t begin = end; begin < half.copies.size(); begin = end) {
    while (end < half.copies.size() && half.copies[end] == half.copies[begin]) ++end;
    LOCKSTEP_RETURN_IF_ERROR(CompareRun(half.copies[begin], index * kCopies + begin, end - begin));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemcpyAsync(differing_host_.as<uint32_t>() + index * kCopies, differing,
                                   bytes, cudaMemcpyDeviceToHost, side_.get()),
                   kWhat));
  return StatusOfCuda(cudaEventRecord(half.compared.get(), side_.get()), kWhat);
}

absl::Status LinearAudit::CompareRun(const AuditedCall& call, size_t begin, size_t count) {
  const bool apart = IsApart(call.shape, call.accumulate);
  const int rows = static_cast<int>(count) * kRowsPerCopy;
  const size_t first = begin * kRowsPerCopy;
  const uint8_t* x = x_.as<uint8_t>() + first * x_bytes_;
  uint8_t* expected = expected_.as<uint8_t>() + first * y_bytes_;
  LinearShape ring = call.shape;
  ring.x_stride = static_cast<int>(x_bytes_ / SizeOf(DType::kBf16));
  ring.y_stride = static_cast<int>(y_bytes_ / SizeOf(ring.output));
  LinearShape product = ring;
  if (apart) product.y_stride = ring.outputs;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
      LinearReference({.shape = product,
                       .rows = rows,
                       .weight = call.weight,
                       .bias = call.bias,
                       .x = x,
                       .product = apart ? product_.as<void>() : static_cast<void*>(expected)},
                      side_.get()),
      kWhat));
  if (apart) {
    LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(
        LinearCombine(
            {.shape = ring,
             .rows = rows,
             .partials = product_.as<void>(),
             .partial_stride = static_cast<size_t>(rows) * static_cast<size_t>(ring.outputs),
             .bias = call.bias,
             .y = expected,
             .accumulate = call.accumulate},
            side_.get()),
        kWhat));
  }
  return StatusOfCuda(CompareAuditedRows({.a = y_.as<uint8_t>() + first * y_bytes_,
                                          .b = expected,
                                          .stride_bytes = y_bytes_,
                                          .columns = ring.outputs,
                                          .type = ring.output,
                                          .slots = static_cast<int>(count),
                                          .rows_per_slot = kRowsPerCopy,
                                          .rows_copied = RowsCopied(call.rows),
                                          .differing = differing_.as<uint32_t>() + begin},
                                         side_.get()),
                      kWhat);
}

absl::Status LinearAudit::WaitAndCollect(size_t index) {
  if (!halves_[index].comparing) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaEventSynchronize(halves_[index].compared.get()), kWhat));
  return Collect(index);
}

absl::Status LinearAudit::Collect(size_t index) {
  Half& half = halves_[index];
  half.comparing = false;
  absl::Status status;
  const uint32_t* differing = differing_host_.as<uint32_t>() + index * kCopies;
  // Nothing was copied into this half since the comparison began.
  for (size_t i = half.compared_count; i < half.copies.size(); ++i) {
    const int rows = RowsCopied(half.copies[i].rows);
    counts_.rows += static_cast<uint64_t>(rows);
    counts_.mismatches += differing[i];
    if (differing[i] == 0) continue;
    status.Update(absl::DataLossError(absl::StrCat(
        "audit: ", differing[i], " of ", rows, " rows of ", Describe(half.copies[i]),
        " are not what the reference kernel makes of the same input: the device or a kernel "
        "computes wrongly")));
  }
  half.compared_count = half.copies.size();
  return status;
}

}  // namespace lockstep::kernels::cuda
