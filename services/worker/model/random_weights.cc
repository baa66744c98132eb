#include "services/worker/model/random_weights.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/api/bf16.h"

namespace lockstep::worker {
namespace {

// How the elements of one tensor are distributed.
struct Scale {
  float mean = 0;
  float deviation = 0;
  float outlier = 1;  // Factor of every kOutlierPeriod-th element.
};

constexpr size_t kOutlierPeriod = 256;
constexpr size_t kOutlierOffset = 37;
constexpr float kOutlierFactor = 20;
constexpr float kQkNormMean = 4;
constexpr float kLogitDeviation = 3;
// Elements that one thread draws at least.
constexpr size_t kElementsPerThread = size_t{1} << 20;

Scale ScaleOf(const ModelConfig& config, const std::string& name,
              const std::vector<int64_t>& shape) {
  const std::string_view tail(name);
  if (tail.ends_with("q_norm.weight") || tail.ends_with("k_norm.weight")) {
    return {.mean = kQkNormMean, .deviation = kQkNormMean / 8};
  }
  if (tail.ends_with("norm.weight")) {
    return {.mean = 1, .deviation = 0.125f, .outlier = kOutlierFactor};
  }
  if (tail.ends_with(".bias")) return {.deviation = 0.5f};
  if (tail.ends_with("embed_tokens.weight")) {
    // A tied embedding is the head too.
    return {.deviation = config.tied_embeddings
                             ? kLogitDeviation / std::sqrt(static_cast<float>(config.hidden))
                             : 1.0f};
  }
  const float inputs = static_cast<float>(shape.back());
  if (tail == "lm_head.weight") return {.deviation = kLogitDeviation / std::sqrt(inputs)};
  // What is added to the residual stream shrinks with the number of additions.
  const bool added = tail.ends_with("o_proj.weight") || tail.ends_with("down_proj.weight");
  const float additions = added ? 2.0f * static_cast<float>(config.layers) : 1.0f;
  return {.deviation = 1 / std::sqrt(inputs * additions)};
}

// The mixing function of SplitMix64 (Steele, Lea, Flood 2014).
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Four uniform 16-bit numbers, added: nearly normal, mean 0, standard deviation 2^16 / sqrt(3).
constexpr int32_t DrawInteger(uint64_t key, uint64_t index) {
  const uint64_t bits = Mix(key + index * 0x9e3779b97f4a7c15);
  const auto sum = static_cast<int32_t>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                        (bits >> 32 & 0xffff) + (bits >> 48));
  return sum - 2 * 0xffff;
}

void DrawPart(uint64_t key, const Scale& scale, size_t begin, std::span<uint16_t> out) {
  const float unit = scale.deviation * (std::sqrt(3.0f) / 65536);
  for (size_t i = 0; i < out.size(); ++i) {
    const float drawn = static_cast<float>(DrawInteger(key, begin + i)) * unit + scale.mean;
    out[i] = kernels::Bf16OfFloat(drawn);
  }
  if (scale.outlier == 1) return;
  for (size_t i = 0; i < out.size(); ++i) {
    if ((begin + i) % kOutlierPeriod != kOutlierOffset) continue;
    const float drawn = static_cast<float>(DrawInteger(key, begin + i)) * unit + scale.mean;
    out[i] = kernels::Bf16OfFloat(drawn * scale.outlier);
  }
}

std::vector<uint16_t> Draw(uint64_t key, const Scale& scale, size_t count) {
  std::vector<uint16_t> values(count);
  const size_t wanted = std::max<size_t>(1, count / kElementsPerThread);
  const size_t threads =
      std::min<size_t>(wanted, std::max(1u, std::thread::hardware_concurrency()));
  const size_t part = (count + threads - 1) / threads;
  {
    std::vector<std::jthread> helpers;  // Joined at the end of the block.
    for (size_t begin = 0; begin < count; begin += part) {
      const auto out = std::span(values).subspan(begin, std::min(part, count - begin));
      helpers.emplace_back([key, scale, begin, out] { DrawPart(key, scale, begin, out); });
    }
  }
  return values;
}

}  // namespace

bool RandomWeights::Has(const std::string& name) const {
  return name != "lm_head.weight" || !config_.tied_embeddings;
}

absl::StatusOr<kernels::HostTensor> RandomWeights::Take(const std::string& name,
                                                        const std::vector<int64_t>& shape) {
  kernels::HostTensor tensor = {.name = name, .dtype = kernels::DType::kBf16, .shape = shape};
  base::Hasher key;
  const base::Digest128 digest = key.Number(seed_).Bytes(name).Finish();
  std::vector<uint16_t> values =
      Draw(digest.low, ScaleOf(config_, name, shape), kernels::ElementCount(tensor));
  base::Hasher hasher;
  hasher.Bytes(name).Bytes("BF16").Array(std::span<const int64_t>(shape));
  digests_[name] = hasher.Array(std::span<const uint16_t>(values)).Finish();
  taken_.push_back(std::move(values));
  tensor.data = taken_.back().data();
  return tensor;
}

absl::Status RandomWeights::TakeCopy(const std::string& name, const std::string& original) {
  return absl::InternalError(
      absl::StrCat("random weights hold no \"", name, "\" beside \"", original, "\""));
}

}  // namespace lockstep::worker
