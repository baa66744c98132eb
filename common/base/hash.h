#pragma once

#include <bit>
#include <compare>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#define XXH_STATIC_LINKING_ONLY
#define XXH_INLINE_ALL
#include "xxhash.h"

namespace lockstep::base {

// 128-bit digest, printed as 32 hex digits, high half first.
struct Digest128 {
  uint64_t high = 0;
  uint64_t low = 0;
  friend bool operator==(const Digest128&, const Digest128&) = default;
  friend auto operator<=>(const Digest128&, const Digest128&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Digest128& d) {
    return H::combine(std::move(h), d.high, d.low);
  }
  std::string ToString() const { return absl::StrFormat("%016x%016x", high, low); }
};

static_assert(std::endian::native == std::endian::little, "digests are over little-endian bytes");

// Streaming XXH3-128. A number is absorbed as a tag and its little-endian bytes, a byte string as
// another tag, its length and its bytes, so that no two different sequences of calls absorb the
// same bytes.
class Hasher {
 public:
  Hasher() { XXH3_128bits_reset(&state_); }
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  Hasher& Number(uint64_t value) { return Tagged('N', value); }
  Hasher& Bytes(std::string_view bytes) {
    Tagged('B', bytes.size());
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
    return *this;
  }
  // The bytes of the values; arrays of other types with the same bytes are the same.
  template <typename T>
  requires std::is_arithmetic_v<T>  // a struct may have padding, whose bytes mean nothing
      Hasher& Array(std::span<const T> values) {
    return Bytes({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  Digest128 Finish() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return {hash.high64, hash.low64};
  }

 private:
  Hasher& Tagged(char tag, uint64_t value) {
    char bytes[1 + sizeof(value)];
    bytes[0] = tag;
    std::memcpy(bytes + 1, &value, sizeof(value));
    XXH3_128bits_update(&state_, bytes, sizeof(bytes));
    return *this;
  }

  XXH3_state_t state_;
};

inline uint64_t Hash64(std::string_view bytes, uint64_t seed = 0) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace lockstep::base
