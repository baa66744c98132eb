#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 by the rules of the WHATWG Encoding Standard: each maximal subpart of an ill-formed
// sequence becomes one U+FFFD. The same bytes give the same text as a browser's TextDecoder (which,
// unlike these functions, may also drop a leading byte order mark).
namespace lockstep::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// What stands at the start of some bytes.
struct Utf8Unit {
  enum class Kind { kValid, kInvalid, kIncomplete };
  Kind kind;
  // Bytes of the character, of the maximal subpart to replace, or of the incomplete rest; 1 to 4.
  size_t size_bytes;
  // Set for kValid only.
  char32_t code_point = 0;
};

// Looks at the first character of `bytes`, which is not empty. kIncomplete means that all of
// `bytes` is a proper prefix of some character.
Utf8Unit ReadUtf8Unit(std::string_view bytes);

// Length of the longest prefix that is well formed.
size_t ValidUtf8Prefix(std::string_view bytes);
inline bool IsValidUtf8(std::string_view bytes) { return ValidUtf8Prefix(bytes) == bytes.size(); }

// `bytes` as valid UTF-8; an incomplete character at the end becomes one U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// Appends the UTF-8 of a code point that is no surrogate and at most U+10FFFF.
void AppendUtf8(char32_t code_point, std::string* out);

// Turns bytes that arrive in pieces into valid UTF-8. Where the pieces are cut does not matter:
// what was appended after feeding some bytes, plus one U+FFFD for a non-empty tail, equals
// ReplaceInvalidUtf8 of all bytes. Not thread-safe.
class Utf8Stream {
 public:
  // Appends what `bytes` completes. The start of a character that may still be completed is kept.
  void Feed(std::string_view bytes, std::string* text);
  // The incomplete character at the end of what was fed; at most 3 bytes.
  std::string_view tail_bytes() const { return tail_; }
  void ClearTail() { tail_.clear(); }

 private:
  std::string tail_;
};

}  // namespace lockstep::text
