#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "kernels/api/host_tensor.h"
#include "services/worker/model/checkpoint.h"

namespace lockstep::worker {

// Takes the tensors of a checkpoint one by one: checks type, shape and values, digests the bytes,
// and knows at the end which tensors nobody took. Borrows the checkpoint.
class TensorReader {
 public:
  explicit TensorReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // The tensor, mapped until DropPages. INVALID_ARGUMENT names file and tensor.
  absl::StatusOr<kernels::HostTensor> Take(const std::string& name,
                                           const std::vector<int64_t>& shape);
  // Takes a tensor that must repeat one already taken, bit for bit, and counts as no tensor.
  absl::Status TakeCopy(const std::string& name, const std::string& original);
  // Takes the pages of everything taken so far out of this process's memory.
  void DropPages();

  // INVALID_ARGUMENT names the first tensor that was not taken.
  absl::Status CheckAllTaken() const;
  std::map<std::string, base::Digest128> TakeDigests() { return std::move(digests_); }

 private:
  const Checkpoint& checkpoint_;
  std::map<std::string, base::Digest128> digests_;
  std::vector<std::string> copies_;
  std::vector<Checkpoint::Tensor> mapped_;
};

}  // namespace lockstep::worker
