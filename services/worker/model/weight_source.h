#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "kernels/api/host_tensor.h"

namespace lockstep::worker {

// Where the weights of a model come from, tensor by tensor, under the names of Hugging Face.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool Has(const std::string& name) const = 0;
  // Tensors whose names begin so will be taken soon: a source may read them beside its caller.
  virtual void ReadAhead(std::string_view /*prefix*/) {}
  // The tensor, with checked values; its data lives until DropPages. INVALID_ARGUMENT names it.
  virtual absl::StatusOr<kernels::HostTensor> Take(const std::string& name,
                                                   const std::vector<int64_t>& shape) = 0;
  // Takes a tensor that must repeat one already taken, bit for bit, and counts as no tensor.
  virtual absl::Status TakeCopy(const std::string& name, const std::string& original) = 0;
  // Takes the data of everything taken so far out of this process's memory.
  virtual void DropPages() = 0;
  // INVALID_ARGUMENT names the first tensor that was not taken.
  virtual absl::Status CheckAllTaken() const = 0;
  // Of each tensor taken: over its name, type, shape and bytes.
  virtual std::map<std::string, base::Digest128> TakeDigests() = 0;
};

}  // namespace lockstep::worker
