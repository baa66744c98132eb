#include "common/base/utf8.h"

#include <cstddef>
#include <cstdint>

namespace lockstep::base {
namespace {

struct Lead {
  size_t length;  // of the whole sequence; 0 when the byte cannot begin one
  uint8_t second_min;
  uint8_t second_max;
};

// Table 3-7 of the Unicode standard: the second byte's range excludes overlong forms, surrogates
// and what lies above U+10FFFF.
Lead ReadLead(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

std::string ToValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Lead lead = ReadLead(static_cast<uint8_t>(bytes[i]));
    size_t good = lead.length == 0 ? 0 : 1;
    while (good > 0 && good < lead.length && i + good < bytes.size()) {
      const auto byte = static_cast<uint8_t>(bytes[i + good]);
      const uint8_t low = good == 1 ? lead.second_min : 0x80;
      const uint8_t high = good == 1 ? lead.second_max : 0xBF;
      if (byte < low || byte > high) break;
      ++good;
    }
    if (lead.length != 0 && good == lead.length) {
      out.append(bytes.substr(i, good));
    } else {
      out.append("\xEF\xBF\xBD");
    }
    i += good == 0 ? 1 : good;
  }
  return out;
}

}  // namespace lockstep::base
