#include "services/worker/model/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "services/worker/model/json_file.h"

namespace lockstep::worker {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // The format's own limit.
constexpr size_t kDimensionsMax = 8;
constexpr size_t kLengthBytes = sizeof(uint64_t);

struct StoredTypeName {
  std::string_view name;
  size_t bytes;
};

constexpr StoredTypeName kStoredTypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
    {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
    {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8},
};

absl::Status Refuse(const std::string& file, const std::string& tensor, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": tensor ", DescribeJson(Json(tensor)), ": ", what));
}

absl::Status ReadUnsigned(const Json& value, uint64_t* number) {
  if (!value.is_number_unsigned()) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeJson(value), " where a non-negative integer must be"));
  }
  *number = value.get<uint64_t>();
  return absl::OkStatus();
}

absl::Status ReadType(const Json& object, SafetensorsEntry* entry) {
  const auto dtype = object.find("dtype");
  if (dtype == object.end() || !dtype->is_string()) {
    return absl::InvalidArgumentError("field \"dtype\" must be a string");
  }
  for (const StoredTypeName& type : kStoredTypes) {
    if (dtype->get_ref<const std::string&>() != type.name) continue;
    entry->dtype = std::string(type.name);
    entry->element_bytes = type.bytes;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", DescribeJson(*dtype)));
}

// `bytes` receives the size that dtype and shape call for.
absl::Status ReadShape(const Json& object, SafetensorsEntry* entry, uint64_t* bytes) {
  const auto shape = object.find("shape");
  if (shape == object.end() || !shape->is_array() || shape->size() > kDimensionsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("field \"shape\" must be an array of at most ", kDimensionsMax, " extents"));
  }
  *bytes = entry->element_bytes;
  for (const Json& element : *shape) {
    uint64_t extent = 0;
    LOCKSTEP_RETURN_IF_ERROR(ReadUnsigned(element, &extent));
    if (extent > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(*bytes, extent, bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape with extent ", extent, " has more than 2^64 bytes"));
    }
    entry->shape.push_back(static_cast<int64_t>(extent));
  }
  return absl::OkStatus();
}

absl::Status ReadEntry(const Json& object, uint64_t data_bytes, SafetensorsEntry* entry) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("is ", DescribeJson(object), ", not an object"));
  }
  for (const auto& [field, value] : object.items()) {
    if (field != "dtype" && field != "shape" && field != "data_offsets") {
      return absl::InvalidArgumentError(absl::StrCat("unknown field ", DescribeJson(Json(field))));
    }
  }
  uint64_t bytes = 0;
  LOCKSTEP_RETURN_IF_ERROR(ReadType(object, entry));
  LOCKSTEP_RETURN_IF_ERROR(ReadShape(object, entry, &bytes));
  const auto offsets = object.find("data_offsets");
  if (offsets == object.end() || !offsets->is_array() || offsets->size() != 2) {
    return absl::InvalidArgumentError("field \"data_offsets\" must be an array of two offsets");
  }
  LOCKSTEP_RETURN_IF_ERROR(ReadUnsigned((*offsets)[0], &entry->begin));
  LOCKSTEP_RETURN_IF_ERROR(ReadUnsigned((*offsets)[1], &entry->end));
  const std::string range = absl::StrCat("data_offsets [", entry->begin, ", ", entry->end, "]");
  if (entry->begin > entry->end || entry->end > data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(range, " do not lie in the file's ", data_bytes, " bytes of data"));
  }
  if (entry->end - entry->begin != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(range, " hold ", entry->end - entry->begin,
                                                   " bytes; dtype ", entry->dtype,
                                                   " and shape call for ", bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckTiling(const std::string& file, std::span<const SafetensorsEntry> entries,
                         uint64_t data_bytes) {
  uint64_t expected = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < expected) {
      return Refuse(file, entry.name,
                    absl::StrCat("begins at ", entry.begin, ", inside the tensor before it, which ",
                                 "ends at ", expected));
    }
    if (entry.begin > expected) {
      return Refuse(file, entry.name,
                    absl::StrCat("begins at ", entry.begin, " after a hole from ", expected));
    }
    expected = entry.end;
  }
  if (expected == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", data_bytes - expected,
                                                 " bytes after the last tensor belong to none"));
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(const std::string& file,
                                                                     std::string_view header,
                                                                     uint64_t data_bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(file, header));
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") continue;
    SafetensorsEntry& entry = entries.emplace_back();
    entry.name = name;
    const absl::Status status = ReadEntry(value, data_bytes, &entry);
    if (!status.ok()) return Refuse(file, name, std::string(status.message()));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  LOCKSTEP_RETURN_IF_ERROR(CheckTiling(file, entries, data_bytes));
  return entries;
}

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensors(const std::string& file,
                                                               std::span<const std::byte> bytes,
                                                               uint64_t* data_begin) {
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": has ", bytes.size(), " bytes, too few for the header's length"));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > std::min<uint64_t>(kHeaderBytesMax, bytes.size() - kLengthBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": header length ", header_bytes, " exceeds ",
                     bytes.size() - kLengthBytes > kHeaderBytesMax
                         ? absl::StrCat("the format's limit of ", kHeaderBytesMax)
                         : absl::StrCat("the file's ", bytes.size(), " bytes")));
  }
  *data_begin = kLengthBytes + header_bytes;
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                header_bytes);
  return ParseSafetensorsHeader(file, header, bytes.size() - *data_begin);
}

void UnmapMemory::operator()(const std::byte* memory) const {
  munmap(const_cast<std::byte*>(memory), bytes);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const base::RegularFile opened, base::RegularFile::Open(path));
  const size_t bytes = opened.bytes();
  // An empty mapping is an error too.
  void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, opened.fd(), 0);
  if (memory == MAP_FAILED) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is empty or cannot be mapped"));
  }
  SafetensorsFile file;
  file.memory_ = {static_cast<const std::byte*>(memory), UnmapMemory{bytes}};
  file.name_ = std::filesystem::path(path).filename().string();
  LOCKSTEP_ASSIGN_OR_RETURN(
      file.entries_, ParseSafetensors(file.name_, {file.memory_.get(), bytes}, &file.data_begin_));
  return file;
}

std::span<const std::byte> SafetensorsFile::Data(const SafetensorsEntry& entry) const {
  return {memory_.get() + data_begin_ + entry.begin, entry.end - entry.begin};
}

void SafetensorsFile::DropPages(const SafetensorsEntry& entry) const {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = (data_begin_ + entry.begin) / page * page;
  const uint64_t end = data_begin_ + entry.end;
  madvise(const_cast<std::byte*>(memory_.get()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace lockstep::worker
