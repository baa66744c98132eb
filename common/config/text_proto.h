#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace lockstep::config {

// Reads the text proto at `path` into `message`, with variables of the environment (variables.h).
// kInvalidArgument names the path when it cannot be read, or every error as "path:line:column:
// what", counted from one. Unknown fields and fields given twice are errors. So is a number that is
// given as 0: it could not be told from one that is left out and takes its default, and no setting
// means anything by 0.
absl::Status ReadTextProto(const std::string& path, google::protobuf::Message* message);

// The same for text in memory; `name` stands where the path would.
absl::Status ParseTextProto(const std::string& name, const std::string& text,
                            google::protobuf::Message* message);

template <typename T>
absl::StatusOr<T> LoadTextProto(const std::string& path) {
  T message;
  if (absl::Status status = ReadTextProto(path, &message); !status.ok()) return status;
  return message;
}

// Several files, each adding to those before it: what is set in two is taken from the later one.
template <typename T>
absl::StatusOr<T> LoadTextProtos(const std::vector<std::string>& paths) {
  T whole;
  for (const std::string& path : paths) {
    absl::StatusOr<T> part = LoadTextProto<T>(path);
    if (!part.ok()) return part.status();
    whole.MergeFrom(*part);
  }
  return whole;
}

}  // namespace lockstep::config
