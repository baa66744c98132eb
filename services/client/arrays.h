#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "google/protobuf/repeated_field.h"

// Arrays of answers are little-endian bytes; here they become vectors, and ids become the fields of
// requests.
namespace lockstep::client {

template <typename T>
std::vector<T> ReadArray(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

inline std::vector<uint32_t> ReadIds(const std::string& bytes) {
  return ReadArray<uint32_t>(bytes);
}
inline std::vector<float> ReadFloats(const std::string& bytes) { return ReadArray<float>(bytes); }

inline google::protobuf::RepeatedField<int64_t> ToIdField(const std::vector<uint32_t>& ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace lockstep::client
