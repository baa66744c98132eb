#include "services/text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/check.h"
#include "services/text/utf8.h"
#include "utf8proc.h"

namespace lockstep::text {
namespace {

constexpr auto kComposeOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Ranges in which every assigned character has NFC_Quick_Check = Yes and combining class 0, and
// which are common enough to be worth a test. Unicode's stability policy keeps them so.
bool NeverChangesUnderNfc(char32_t c) {
  return c < 0x300 || (c >= 0x410 && c <= 0x44F) || (c >= 0x2010 && c <= 0x2027) ||
         (c >= 0x3001 && c <= 0x3029) || (c >= 0x3041 && c <= 0x3096) ||
         (c >= 0x30A1 && c <= 0x30FA) || (c >= 0x4E00 && c <= 0x9FFF) ||
         (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xFF01 && c <= 0xFF5E) ||
         (c >= 0x1F300 && c <= 0x1F64F) || c == 0xFFFD;
}

void AppendDecomposition(char32_t code_point, std::vector<utf8proc_int32_t>* out) {
  utf8proc_int32_t buffer[32];
  int boundary_class = 0;
  const utf8proc_ssize_t count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(code_point), buffer, std::size(buffer),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary_class);
  LOCKSTEP_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(std::size(buffer)));
  out->insert(out->end(), buffer, buffer + count);
}

// Canonical ordering. utf8proc's own loop is quadratic in the length of a run of combining marks,
// which one hostile prompt could use; a stable sort of each run gives the same order.
void SortCombiningMarks(std::vector<utf8proc_int32_t>* code_points) {
  const auto combining_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  auto at = code_points->begin();
  while (at != code_points->end()) {
    at = std::find_if(at, code_points->end(),
                      [&](utf8proc_int32_t c) { return combining_class(c) != 0; });
    const auto end = std::find_if(at, code_points->end(),
                                  [&](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(at, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    at = end;
  }
}

}  // namespace

bool IsClearlyNfc(std::string_view text) {
  while (!text.empty()) {
    if (static_cast<uint8_t>(text[0]) < 0x80) {
      text.remove_prefix(1);
      continue;
    }
    const Utf8Unit unit = ReadUtf8Unit(text);
    if (!NeverChangesUnderNfc(unit.code_point)) return false;
    text.remove_prefix(unit.size_bytes);
  }
  return true;
}

std::string NormalizeNfc(std::string_view text) {
  if (IsClearlyNfc(text)) return std::string(text);
  std::vector<utf8proc_int32_t> code_points;
  code_points.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = ReadUtf8Unit(text);
    AppendDecomposition(unit.code_point, &code_points);
    text.remove_prefix(unit.size_bytes);
  }
  SortCombiningMarks(&code_points);
  const utf8proc_ssize_t count = utf8proc_normalize_utf32(
      code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()), kComposeOptions);
  LOCKSTEP_CHECK(count >= 0);
  std::string out;
  out.reserve(code_points.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendUtf8(static_cast<char32_t>(code_points[i]), &out);
  }
  return out;
}

}  // namespace lockstep::text
