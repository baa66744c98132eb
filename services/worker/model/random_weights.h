#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/api/kernel_set.h"
#include "services/worker/model/model_config.h"
#include "services/worker/model/weight_source.h"

namespace lockstep::worker {

// Draws weights in bf16. An element is a function of the seed, the tensor's name and its index, by
// integers and one rounding, so every machine and any number of threads draw the same.
//
// The scales keep activations of order one through any number of layers and exercise what default
// initialisation leaves idle: q_norm and k_norm around 4, so that attention is peaked and its
// running maximum moves; norm weights 20 times larger in one channel of 256, as trained models have
// outlier channels; logits with a standard deviation of about 3.
class RandomWeights final : public WeightSource {
 public:
  // Copies `config`. Matrices are drawn on `kernels`, where it can, and else on the host; it may be
  // null, and outlives this.
  RandomWeights(const ModelConfig& config, uint64_t seed, kernels::KernelSet* kernels)
      : config_(config), seed_(seed), kernels_(kernels) {}

  bool Has(const std::string& name) const override;
  absl::StatusOr<kernels::HostTensor> Take(const std::string& name,
                                           const std::vector<int64_t>& shape) override;
  absl::Status TakeCopy(const std::string& name, const std::string& original) override;
  void DropPages() override {
    taken_.clear();
    drawn_.clear();
  }
  absl::Status CheckAllTaken() const override { return absl::OkStatus(); }
  std::map<std::string, base::Digest128> TakeDigests() override { return std::move(digests_); }

 private:
  // Draws, adds the bytes to a digest, and returns where they are.
  absl::StatusOr<const void*> DrawOnBackend(const std::string& name, kernels::DrawArgs args,
                                            base::Hasher* hasher);

  const ModelConfig config_;
  const uint64_t seed_;
  kernels::KernelSet* const kernels_;
  std::vector<kernels::Buffer> drawn_;
  std::array<kernels::Buffer, 2> pieces_;
  std::vector<std::vector<uint16_t>> taken_;
  std::map<std::string, base::Digest128> digests_;
};

}  // namespace lockstep::worker
