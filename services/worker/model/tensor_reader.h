#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "kernels/api/host_tensor.h"
#include "services/worker/model/checkpoint.h"
#include "services/worker/model/tensor_checks.h"
#include "services/worker/model/weight_source.h"

namespace lockstep::worker {

// Takes the tensors of a checkpoint one by one: checks type, shape and values, digests the bytes,
// and knows at the end which tensors nobody took. Borrows the checkpoint.
class TensorReader final : public WeightSource {
 public:
  explicit TensorReader(const Checkpoint& checkpoint);

  bool Has(const std::string& name) const override { return checkpoint_.Find(name) != nullptr; }
  // Has threads check them. What is wrong with one is told when it is taken.
  void ReadAhead(std::string_view prefix) override;
  // The tensor, mapped. Errors name file and tensor.
  absl::StatusOr<kernels::HostTensor> Take(const std::string& name,
                                           const std::vector<int64_t>& shape) override;
  absl::Status TakeCopy(const std::string& name, const std::string& original) override;
  void DropPages() override;
  absl::Status CheckAllTaken() const override;
  std::map<std::string, base::Digest128> TakeDigests() override { return std::move(digests_); }

 private:
  const Checkpoint& checkpoint_;
  std::map<std::string, base::Digest128> digests_;
  std::vector<std::string> copies_;
  std::vector<Checkpoint::Tensor> mapped_;
  TensorChecks checks_;
};

}  // namespace lockstep::worker
