#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "services/worker/model/safetensors.h"

// Input: the bytes of a safetensors file. Whatever is accepted must tile the data section with
// tensors of the size that type and shape call for, so that reading them stays inside the file.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint64_t data_begin = 0;
  const auto entries = lockstep::worker::ParseSafetensors(
      "input", std::as_bytes(std::span(data, size)), &data_begin);
  if (!entries.ok()) {
    LOCKSTEP_CHECK(entries.status().code() == absl::StatusCode::kInvalidArgument);
    LOCKSTEP_CHECK(!entries.status().message().empty());
    return 0;
  }
  uint64_t expected = 0;
  for (const lockstep::worker::SafetensorsEntry& entry : *entries) {
    uint64_t bytes = entry.element_bytes;
    for (const int64_t extent : entry.shape) bytes *= static_cast<uint64_t>(extent);
    LOCKSTEP_CHECK_EQ(entry.begin, expected);
    LOCKSTEP_CHECK_EQ(entry.end - entry.begin, bytes);
    expected = entry.end;
  }
  LOCKSTEP_CHECK_EQ(data_begin + expected, size);
  return 0;
}
