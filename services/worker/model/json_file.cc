#include "services/worker/model/json_file.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep::worker {
namespace {

using Json = nlohmann::json;

constexpr int kNestingMax = 32;
constexpr size_t kDescriptionBytesMax = 60;

// Watches a parse: which key came last, and whether an object repeated one.
class KeyWatch {
 public:
  // The parser's callback; false drops what is nested too deep, before it is built.
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kNestingMax) {
      too_deep_ = true;
      return false;
    }
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end && !open_.empty()) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key && !open_.empty()) {
      last_key_ = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(last_key_).second && repeated_.empty()) repeated_ = last_key_;
    }
    return true;
  }
  bool too_deep() const { return too_deep_; }
  const std::string& last_key() const { return last_key_; }
  const std::string& repeated() const { return repeated_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string last_key_;
  std::string repeated_;
  bool too_deep_ = false;
};

std::string Quote(std::string_view text) { return DescribeJson(Json(std::string(text))); }

}  // namespace

absl::StatusOr<Json> ParseJsonObject(const std::string& file, std::string_view text) {
  KeyWatch watch;
  Json value;
  // The one place where the library's exceptions end.
  try {
    value = Json::parse(text.begin(), text.end(),
                        [&watch](int depth, Json::parse_event_t event, Json& parsed) {
                          return watch(depth, event, parsed);
                        });
  } catch (const Json::exception& error) {
    std::string detail = error.what();
    if (detail.size() > 200) detail.resize(200);
    for (char& c : detail) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
    }
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": not valid JSON after field ", Quote(watch.last_key()), ": ", detail));
  }
  if (watch.too_deep()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": nested deeper than ", kNestingMax,
                                                   " at field ", Quote(watch.last_key())));
  }
  if (!watch.repeated().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": field ", Quote(watch.repeated()), " occurs twice"));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": must be a JSON object, is ", DescribeJson(value)));
  }
  return value;
}

std::string DescribeJson(const Json& value) {
  if (value.is_array()) return absl::StrCat("an array of ", value.size());
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kDescriptionBytesMax) {
    text.resize(kDescriptionBytesMax);
    text += "...";
  }
  return text;
}

const Json* JsonFields::Find(std::string_view field) const {
  const auto found = object_.find(std::string(field));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<int64_t> JsonFields::Integer(std::string_view field, int64_t least,
                                            int64_t most) const {
  const Json* value = Find(field);
  if (value == nullptr) return Missing(field);
  const std::string expected = absl::StrFormat("an integer in [%d, %d]", least, most);
  if (!value->is_number_integer()) return Wrong(field, *value, expected);
  // The library keeps what exceeds int64 as unsigned, and what exceeds uint64 as a float.
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Wrong(field, *value, expected);
  }
  const int64_t number = value->get<int64_t>();
  if (number < least || number > most) return Wrong(field, *value, expected);
  return number;
}

absl::StatusOr<double> JsonFields::Real(std::string_view field, double least, double most) const {
  const Json* value = Find(field);
  if (value == nullptr) return Missing(field);
  const std::string expected = absl::StrFormat("a number in [%g, %g]", least, most);
  if (!value->is_number()) return Wrong(field, *value, expected);
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < least || number > most) {
    return Wrong(field, *value, expected);
  }
  return number;
}

absl::StatusOr<bool> JsonFields::Boolean(std::string_view field, bool absent) const {
  const Json* value = Find(field);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return Wrong(field, *value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonFields::String(std::string_view field) const {
  const Json* value = Find(field);
  if (value == nullptr) return Missing(field);
  if (!value->is_string()) return Wrong(field, *value, "a string");
  return value->get<std::string>();
}

absl::Status JsonFields::Missing(std::string_view field) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": field ", Quote(field), " is missing"));
}

absl::Status JsonFields::Wrong(std::string_view field, const Json& value,
                               const std::string& expected) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": field ", Quote(field), " is ",
                                                 DescribeJson(value), "; must be ", expected));
}

}  // namespace lockstep::worker
