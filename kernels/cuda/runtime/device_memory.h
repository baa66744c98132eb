#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/kernel_set.h"

namespace lockstep::kernels::cuda {

// What the current device has, and what of it nobody uses. Any thread.
absl::StatusOr<DeviceMemory> FreeDeviceMemory();

// Memory of the current device. RESOURCE_EXHAUSTED names `purpose`, the bytes asked for, free and
// missing. Any thread.
absl::StatusOr<Buffer> AllocateDevice(size_t bytes, std::string_view purpose);

// Memory of the host that the device copies from and to by itself.
absl::StatusOr<Buffer> AllocatePinned(size_t bytes, std::string_view purpose);

}  // namespace lockstep::kernels::cuda
