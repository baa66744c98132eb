#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/packed_array.h"
#include "google/protobuf/repeated_field.h"

// Arrays of answers are little-endian bytes; here they become vectors, and ids become the fields of
// requests.
namespace lockstep::client {

inline std::vector<uint32_t> ReadIds(const std::string& bytes) {
  return base::UnpackArray<uint32_t>(bytes);
}
inline std::vector<float> ReadFloats(const std::string& bytes) {
  return base::UnpackArray<float>(bytes);
}

inline google::protobuf::RepeatedField<int64_t> ToIdField(const std::vector<uint32_t>& ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace lockstep::client
