#include "services/cli/record.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "services/cli/files.h"
#include "services/cli/json_text.h"
#include "services/worker/model/json_file.h"

namespace lockstep::cli {
namespace {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  return json;
}

absl::Status FromJson(const nlohmann::json& json, google::protobuf::Message* message) {
  const auto status = google::protobuf::util::JsonStringToMessage(JsonText(json), message);
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(status.message()));
}

}  // namespace

absl::Status WriteRecord(const std::string& path, const Record& record) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string request, ToJson(record.request));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string response, ToJson(record.response));
  return WriteFile(path,
                   absl::StrCat("{\"request\": ", request, ",\n \"response\": ", response, "}\n"));
}

absl::StatusOr<Record> ReadRecord(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LOCKSTEP_ASSIGN_OR_RETURN(const nlohmann::json json, worker::ParseJsonObject(path, text));
  if (!json.contains("request") || !json.contains("response")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no record of lockstep generate --record"));
  }
  Record record;
  absl::Status status = FromJson(json["request"], &record.request);
  if (status.ok()) status = FromJson(json["response"], &record.response);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  if (record.response.samples().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the answer in it has no sample"));
  }
  return record;
}

}  // namespace lockstep::cli
