#include "services/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "services/text/utf8.h"

namespace lockstep::text {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> MakeCharacters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}

constexpr std::array<char32_t, 256> kCharacterOfByte = MakeCharacters();

constexpr std::array<int16_t, kAlphabetEnd> MakeBytes() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) {
    bytes[kCharacterOfByte[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

constexpr std::array<int16_t, kAlphabetEnd> kByteOfCharacter = MakeBytes();

}  // namespace

std::optional<std::string> BytesOfAlphabetText(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Unit unit = ReadUtf8Unit(token);
    if (unit.code_point >= kAlphabetEnd || kByteOfCharacter[unit.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kByteOfCharacter[unit.code_point]));
    token.remove_prefix(unit.size_bytes);
  }
  return bytes;
}

std::string AlphabetTextOfBytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) AppendUtf8(kCharacterOfByte[static_cast<uint8_t>(byte)], &text);
  return text;
}

}  // namespace lockstep::text
