#include "common/config/text_proto.h"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/config/variables.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace lockstep::config {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;

class ErrorList final : public google::protobuf::io::ErrorCollector {
 public:
  explicit ErrorList(std::string name) : name_(std::move(name)) {}

  // protobuf counts from zero; -1 is an error of the whole file.
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    errors_.push_back(line < 0
                          ? absl::StrCat(name_, ": ", message)
                          : absl::StrCat(name_, ":", line + 1, ":", column + 1, ": ", message));
  }
  // What protobuf only warns of (a deprecated spelling) is refused: a setting is right or an error.
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    AddError(line, column, message);
  }
  bool empty() const { return errors_.empty(); }
  std::string Join() const { return absl::StrJoin(errors_, "; "); }

 private:
  const std::string name_;
  std::vector<std::string> errors_;
};

bool IsZero(const google::protobuf::Message& message,
            const google::protobuf::FieldDescriptor& field) {
  using google::protobuf::FieldDescriptor;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      // Without presence only what is not 0 counts as there.
      return !message.GetReflection()->HasField(message, &field);
    default:
      return false;
  }
}

// Adds an error for every number without presence that the text gives as 0. `where` says what the
// text gives; `path` is that of the message, with a dot at its end unless it is the outermost one.
void FindZeros(const google::protobuf::Message& message,
               google::protobuf::TextFormat::ParseInfoTree& where, const std::string& path,
               ErrorList* errors) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) continue;
    if (field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!message.GetReflection()->HasField(message, &field)) continue;
      FindZeros(message.GetReflection()->GetMessage(message, &field),
                *where.GetTreeForNested(&field, -1), absl::StrCat(path, field.name(), "."), errors);
      continue;
    }
    const auto place = where.GetLocation(&field, -1);
    if (place.line < 0 || !IsZero(message, field)) continue;
    errors->AddError(
        place.line, place.column,
        absl::StrCat(path, field.name(), ": 0 is not more than 0; left out, it takes its default"));
  }
}

absl::Status CannotBeRead(const std::string& path, int error) {
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", std::strerror(error)));
}

// Of a file, or of a pipe, as what a shell puts in the place of a command.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (file == nullptr) return CannotBeRead(path, errno);
  std::string text;
  char buffer[4096];
  while (const size_t size = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, size);
    if (text.size() > kFileBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is longer than ", kFileBytesMax,
                                                     " bytes, which is what is read at most"));
    }
  }
  // A directory can be opened, but not read.
  if (std::ferror(file.get()) != 0) return CannotBeRead(path, errno);
  return text;
}

}  // namespace

absl::Status ReadTextProto(const std::string& path, google::protobuf::Message* message) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string expanded,
                            ExpandVariables(path, text, FromEnvironment));
  return ParseTextProto(path, expanded, message);
}

absl::Status ParseTextProto(const std::string& name, const std::string& text,
                            google::protobuf::Message* message) {
  ErrorList errors(name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  google::protobuf::TextFormat::ParseInfoTree where;
  parser.WriteLocationsTo(&where);
  const bool parsed = parser.ParseFromString(text, message);
  if (parsed) FindZeros(*message, where, "", &errors);
  if (parsed && errors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(errors.empty() ? absl::StrCat(name, ": cannot be parsed")
                                                   : errors.Join());
}

}  // namespace lockstep::config
