#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "kernels/api/kernel_set.h"
#include "services/worker/engine/step_executor.h"
#include "services/worker/model/device_array.h"

namespace lockstep::worker {

// An array of one step: where the host and where the device has it. Valid until its slot is used
// again; the device's side holds this step's values only for ops of this step.
template <typename T>
struct StepPart {
  std::span<T> host;
  T* device = nullptr;
};

// Arrays that go to the device, or come back from it, in one copy a step. A step takes its arrays
// one after the other; the same takes give the same device addresses, so a captured graph finds
// them. Copies run later than their call, so the host's side exists once for each step in flight.
class StepArena {
 public:
  absl::Status Allocate(kernels::KernelSet* kernels, size_t bytes, std::string_view purpose);

  // Begins a step on the host's side `slot`, below kStepsInFlightMax.
  void Begin(int slot);
  // `host` holds whatever an earlier step left.
  template <typename T>
  StepPart<T> Take(size_t count) {
    const size_t offset = used_;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    LOCKSTEP_CHECK_LE(used_, device_.bytes());
    return {.host = {reinterpret_cast<T*>(hosts_[slot_].as<char>() + offset), count},
            .device = reinterpret_cast<T*>(device_.as<char>() + offset)};
  }
  size_t used_bytes() const { return used_; }

  // All that was taken.
  void Upload(kernels::KernelSet* kernels);
  // The first `bytes` of it; there when the backend has run this far.
  void Download(kernels::KernelSet* kernels, size_t bytes);

  // For the bytes of an arena: of one array.
  template <typename T>
  static size_t BytesOf(size_t count) {
    return (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  static constexpr size_t kAlignment = 256;

  kernels::Buffer device_;
  std::array<kernels::Buffer, kStepsInFlightMax> hosts_;
  int slot_ = 0;
  size_t used_ = 0;
};

// An array of steps that has no bound and is seldom there; it grows to the largest step seen.
template <typename T>
class GrowingArray {
 public:
  // Room for `count` elements on the host's side `slot` and on the device. True in `*moved` when
  // the device's address changed; set otherwise by nobody.
  absl::Status Reserve(kernels::KernelSet* kernels, int slot, size_t count,
                       std::string_view purpose, bool* moved) {
    const T* const before = device_.data();
    LOCKSTEP_RETURN_IF_ERROR(device_.Reserve(kernels, count, purpose));
    *moved |= device_.data() != before;
    kernels::Buffer& host = hosts_[slot];
    if (count * sizeof(T) <= host.bytes()) return absl::OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(host, kernels->AllocateHost(2 * count * sizeof(T), purpose));
    return absl::OkStatus();
  }
  StepPart<T> part(int slot, size_t count) const {
    return {.host = {hosts_[slot].template as<T>(), count}, .device = device_.data()};
  }

 private:
  DeviceArray<T> device_;
  std::array<kernels::Buffer, kStepsInFlightMax> hosts_;
};

template <typename T>
void UploadPart(kernels::KernelSet* kernels, const StepPart<T>& part) {
  if (!part.host.empty()) {
    kernels->Upload(part.host.data(), part.host.size_bytes(), part.device);
  }
}
template <typename T>
void DownloadPart(kernels::KernelSet* kernels, const StepPart<T>& part) {
  if (!part.host.empty()) {
    kernels->Download(part.device, part.host.size_bytes(), part.host.data());
  }
}

}  // namespace lockstep::worker
