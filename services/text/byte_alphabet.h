#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::text {

// Byte-level vocabularies write each byte as one printable character: printable Latin-1 stands for
// itself, the other 68 bytes are U+0100 upward. Returns the bytes that `token`
// stands for, or nullopt when a character of it is not in that alphabet. `token` is valid UTF-8.
std::optional<std::string> BytesOfAlphabetText(std::string_view token);

// The inverse: any bytes written in the alphabet.
std::string AlphabetTextOfBytes(std::string_view bytes);

}  // namespace lockstep::text
