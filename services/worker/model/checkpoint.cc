#include "services/worker/model/checkpoint.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "services/worker/model/json_file.h"

namespace lockstep::worker {
namespace {

using Json = nlohmann::json;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kIndexBytesMax = size_t{64} << 20;

std::string Quote(const std::string& text) { return DescribeJson(Json(text)); }

// A shard is a file beside the index; a path could lead anywhere.
bool IsPlainFileName(const std::string& name) {
  return name.size() < 256 && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos && absl::EndsWith(name, ".safetensors");
}

absl::Status IndexError(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(kIndexFile, ": ", what));
}

// Shard of each tensor.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(std::string_view index_text) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Json object, ParseJsonObject(kIndexFile, index_text));
  const JsonFields fields(kIndexFile, object);
  const Json* weight_map = fields.Find("weight_map");
  if (weight_map == nullptr) return fields.Missing("weight_map");
  if (!weight_map->is_object() || weight_map->empty()) {
    return fields.Wrong("weight_map", *weight_map, "an object from tensor to file");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get_ref<const std::string&>())) {
      return IndexError(absl::StrCat("tensor ", Quote(tensor), " is in ", DescribeJson(file),
                                     "; must be a .safetensors file beside the index"));
    }
    shards.emplace(tensor, file.get<std::string>());
  }
  return shards;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory) {
  Checkpoint checkpoint;
  const std::string single = absl::StrCat(directory, "/", kSingleFile);
  const absl::StatusOr<std::string> index =
      base::ReadRegularFile(absl::StrCat(directory, "/", kIndexFile), kIndexBytesMax);
  std::error_code ignored;
  const bool has_single = std::filesystem::exists(single, ignored);
  if (absl::IsNotFound(index.status())) {
    if (!has_single) {
      return absl::NotFoundError(
          absl::StrCat(directory, ": has neither ", kSingleFile, " nor ", kIndexFile));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
    checkpoint.files_.push_back(std::make_unique<const SafetensorsFile>(std::move(file)));
    LOCKSTEP_RETURN_IF_ERROR(checkpoint.AddFile(*checkpoint.files_.back()));
    return checkpoint;
  }
  LOCKSTEP_RETURN_IF_ERROR(index.status());
  if (has_single) {
    return absl::InvalidArgumentError(absl::StrCat(directory, ": has both ", kSingleFile, " and ",
                                                   kIndexFile, "; remove the one that is old"));
  }
  LOCKSTEP_RETURN_IF_ERROR(checkpoint.OpenShards(directory, *index));
  return checkpoint;
}

absl::Status Checkpoint::OpenShards(const std::string& directory, std::string_view index_text) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto weight_map, ReadWeightMap(index_text));
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [tensor, shard] : weight_map) {
    if (opened.contains(shard)) continue;
    absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(absl::StrCat(directory, "/", shard));
    if (absl::IsNotFound(file.status())) {
      return IndexError(absl::StrCat("tensor ", Quote(tensor), " is in shard ", Quote(shard),
                                     ", which is missing"));
    }
    LOCKSTEP_RETURN_IF_ERROR(file.status());
    files_.push_back(std::make_unique<const SafetensorsFile>(*std::move(file)));
    opened.emplace(shard, files_.back().get());
    LOCKSTEP_RETURN_IF_ERROR(AddFile(*files_.back()));
  }
  for (const auto& [name, tensor] : tensors_) {
    const auto listed = weight_map.find(name);
    if (listed == weight_map.end() || listed->second != tensor.file->name()) {
      return IndexError(absl::StrCat(
          "tensor ", Quote(name), " is stored in ", Quote(tensor.file->name()), " but listed ",
          listed == weight_map.end() ? "nowhere" : absl::StrCat("in ", Quote(listed->second))));
    }
  }
  for (const auto& [name, shard] : weight_map) {
    if (!tensors_.contains(name)) {
      return IndexError(
          absl::StrCat("tensor ", Quote(name), " is listed in ", Quote(shard), ", which lacks it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(const SafetensorsFile& file) {
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto [found, added] = tensors_.emplace(entry.name, Tensor{&file, &entry});
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat(file.name(), ": tensor ", Quote(entry.name),
                                                     " is also in ",
                                                     Quote(found->second.file->name())));
    }
  }
  return absl::OkStatus();
}

const Checkpoint::Tensor* Checkpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace lockstep::worker
