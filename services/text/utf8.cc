#include "services/text/utf8.h"

#include <cstring>

namespace lockstep::text {
namespace {

// What the first byte of a multi-byte character promises. `second_min` and `second_max` exclude
// overlong forms, surrogates and code points above U+10FFFF.
struct Lead {
  size_t size_bytes = 0;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead ReadLead(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  return {};
}

bool IsAsciiWord(const char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return (word & 0x8080808080808080u) == 0;
}

// Appends what is decided of `bytes` and returns what is left: empty or one incomplete character.
std::string_view AppendDecided(std::string_view bytes, std::string* text) {
  while (!bytes.empty()) {
    const size_t valid = ValidUtf8Prefix(bytes);
    text->append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    const Utf8Unit unit = ReadUtf8Unit(bytes);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) break;
    text->append(kReplacementCharacter);
    bytes.remove_prefix(unit.size_bytes);
  }
  return bytes;
}

}  // namespace

Utf8Unit ReadUtf8Unit(std::string_view bytes) {
  const uint8_t first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {Utf8Unit::Kind::kValid, 1, first};
  const Lead lead = ReadLead(first);
  if (lead.size_bytes == 0) return {Utf8Unit::Kind::kInvalid, 1};
  char32_t code_point = first & (0xFF >> (lead.size_bytes + 1));
  for (size_t i = 1; i < lead.size_bytes; ++i) {
    if (i == bytes.size()) return {Utf8Unit::Kind::kIncomplete, i};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (byte < low || byte > high) return {Utf8Unit::Kind::kInvalid, i};
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {Utf8Unit::Kind::kValid, lead.size_bytes, code_point};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<uint8_t>(bytes[at]) < 0x80) {
      const bool word_left = at + sizeof(uint64_t) <= bytes.size();
      at += word_left && IsAsciiWord(bytes.data() + at) ? sizeof(uint64_t) : 1;
      continue;
    }
    const Utf8Unit unit = ReadUtf8Unit(bytes.substr(at));
    if (unit.kind != Utf8Unit::Kind::kValid) break;
    at += unit.size_bytes;
  }
  return at;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  if (!AppendDecided(bytes, &text).empty()) text.append(kReplacementCharacter);
  return text;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto byte = [out](uint32_t value) { out->push_back(static_cast<char>(value)); };
  if (code_point < 0x80) {
    byte(code_point);
  } else if (code_point < 0x800) {
    byte(0xC0 | (code_point >> 6));
    byte(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    byte(0xE0 | (code_point >> 12));
    byte(0x80 | ((code_point >> 6) & 0x3F));
    byte(0x80 | (code_point & 0x3F));
  } else {
    byte(0xF0 | (code_point >> 18));
    byte(0x80 | ((code_point >> 12) & 0x3F));
    byte(0x80 | ((code_point >> 6) & 0x3F));
    byte(0x80 | (code_point & 0x3F));
  }
}

void Utf8Stream::Feed(std::string_view bytes, std::string* text) {
  if (tail_.empty()) {
    tail_ = AppendDecided(bytes, text);
    return;
  }
  const std::string joined = tail_ + std::string(bytes);
  tail_ = AppendDecided(joined, text);
}

}  // namespace lockstep::text
