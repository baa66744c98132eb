#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::worker {

// One tensor of a safetensors file, as its header describes it.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // The format's name, for example "BF16".
  size_t element_bytes = 0;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // Bytes from the start of the data section.
  uint64_t end = 0;
};

// Checks and decodes the JSON header of a file whose data section has `data_bytes` bytes. Entries
// come in ascending `begin` and tile the data section without overlap or hole, as the format
// demands. INVALID_ARGUMENT names `file`, the tensor and the value.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(const std::string& file,
                                                                     std::string_view header,
                                                                     uint64_t data_bytes);

// Checks the whole layout of a file's bytes: the length field, the header, the data section.
// `data_begin` receives the offset of the data section.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(const std::string& file,
                                                               std::span<const std::byte> bytes,
                                                               uint64_t* data_begin);

struct UnmapMemory {
  size_t bytes = 0;
  void operator()(const std::byte* memory) const;
};

// A safetensors file, mapped. The file must not shrink while it is open. Thread-safe for reads.
class SafetensorsFile {
 public:
  // NOT_FOUND when there is no such file, INVALID_ARGUMENT when its contents are refused
  // or it is no regular file.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  // Without the directory: what messages name.
  const std::string& name() const { return name_; }
  std::span<const SafetensorsEntry> entries() const { return entries_; }
  // May lie at any alignment: the format does not promise more.
  std::span<const std::byte> Data(const SafetensorsEntry& entry) const;
  // Takes the entry's pages out of this process's memory; a later read maps them again.
  void DropPages(const SafetensorsEntry& entry) const;

 private:
  std::string name_;
  std::unique_ptr<const std::byte, UnmapMemory> memory_;
  uint64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace lockstep::worker
