#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

// Numbers as they travel in `bytes` fields: four little-endian bytes each, without a header, so
// that numpy.frombuffer reads them.
static_assert(std::endian::native == std::endian::little, "packed arrays are little-endian");

inline constexpr size_t kPackedNumberBytes = 4;

template <typename T>
concept PackedNumber =
    std::same_as<T, uint32_t> || std::same_as<T, int32_t> || std::same_as<T, float>;

template <PackedNumber T>
std::string PackArray(std::span<const T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}
template <PackedNumber T>
std::string PackArray(const std::vector<T>& values) {
  return PackArray(std::span<const T>(values));
}

// Whole numbers in `bytes`; a broken one at the end is not counted. Whoever takes bytes from a peer
// compares their size first.
inline int64_t PackedCount(std::string_view bytes) {
  return static_cast<int64_t>(bytes.size() / kPackedNumberBytes);
}

// The number at `index`, in [0, PackedCount(bytes)).
template <PackedNumber T>
T PackedAt(std::string_view bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * kPackedNumberBytes,
              kPackedNumberBytes);
  return value;
}

template <PackedNumber T>
std::vector<T> UnpackArray(std::string_view bytes) {
  std::vector<T> values(static_cast<size_t>(PackedCount(bytes)));
  // memcpy must not be given the null pointer of an empty vector.
  if (!values.empty()) {
    std::memcpy(values.data(), bytes.data(), values.size() * kPackedNumberBytes);
  }
  return values;
}

}  // namespace lockstep::base
