#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/worker/model/safetensors.h"

namespace lockstep::worker {

// The tensors of a Hugging Face directory, from model.safetensors or from the shards that
// model.safetensors.index.json lists. Example:
//   LOCKSTEP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
//   const Checkpoint::Tensor* head = checkpoint.Find("lm_head.weight");
class Checkpoint {
 public:
  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  // INVALID_ARGUMENT names the file and the tensor: of an index that lists a missing shard or a
  // tensor that its shard lacks, of a tensor stored twice or not listed, of a directory with both
  // forms. NOT_FOUND when it has neither.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory);

  // Null when there is none. Lives as long as the checkpoint.
  const Tensor* Find(std::string_view name) const;
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

 private:
  absl::Status OpenShards(const std::string& directory, std::string_view index_text);
  absl::Status AddFile(const SafetensorsFile& file);

  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace lockstep::worker
