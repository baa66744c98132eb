#include "common/log/logger.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace lockstep::log {
namespace {

std::string_view LevelName(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "unknown";
}

// A JSON string, quotes included.
std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : base::ToValidUtf8(text)) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

// Text that needs no quotes to be read back: no blank, quote, equals sign, control or other byte.
bool IsBareWord(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return c > ' ' && c < 0x7F && c != '"' && c != '=' && c != '\\';
  });
}

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : Quote(absl::StrCat(value));
}

std::string ValueText(const Field::Value& value, Format format) {
  return std::visit(
      [format](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return format == Format::kText && IsBareWord(v) ? v : Quote(v);
        } else if constexpr (std::is_same_v<T, bool>) {
          return v ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          return Number(v);
        } else {
          return absl::StrCat(v);
        }
      },
      value);
}

void AppendField(const Field& field, Format format, std::string* line) {
  const std::string key(field.key());
  const std::string value = ValueText(field.value(), format);
  if (format == Format::kText) {
    absl::StrAppend(line, " ", key, "=", value);
  } else {
    absl::StrAppend(line, ",", Quote(key), ":", value);
  }
}

}  // namespace

Logger::Logger(Options options, const base::Clock* clock, LogSink* sink)
    : options_(std::move(options)), clock_(clock), sink_(sink) {}

Logger Logger::ForRequest(std::string_view trace_id, std::string_view request_id) const {
  Logger traced = *this;
  traced.trace_id_ = std::string(trace_id.empty() ? request_id : trace_id);
  traced.step_level_ = trace_id.empty() ? Level::kDebug : Level::kInfo;
  return traced;
}

void Logger::Log(Level level, std::string_view event, std::initializer_list<Field> fields) const {
  if (!enabled(level)) return;
  const std::string time =
      absl::FormatTime("%Y-%m-%d%ET%H:%M:%E6SZ", clock_->Now(), absl::UTCTimeZone());
  const std::string level_name(LevelName(level));
  std::string line;
  if (options_.format == Format::kText) {
    line = absl::StrCat(time, " ", level_name, " ", options_.service, " ", std::string(event));
  } else {
    line = absl::StrCat("{\"ts\":\"", time, "\",\"level\":\"", level_name,
                        "\",\"service\":", Quote(options_.service), ",\"event\":", Quote(event));
  }
  if (!trace_id_.empty()) AppendField({"trace_id", trace_id_}, options_.format, &line);
  for (const Field& field : fields) AppendField(field, options_.format, &line);
  line += options_.format == Format::kText ? "\n" : "}\n";
  sink_->Write(line);
}

}  // namespace lockstep::log
