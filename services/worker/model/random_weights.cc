#include "services/worker/model/random_weights.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
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
// A tensor is digested piece by piece, so that one drawn elsewhere need not be here as a whole.
constexpr size_t kPieceBytes = size_t{32} << 20;
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

float UnitOf(const Scale& scale) { return scale.deviation * (std::sqrt(3.0f) / 65536); }

void DrawPart(uint64_t key, const Scale& scale, size_t begin, std::span<uint16_t> out) {
  const float unit = UnitOf(scale);
  for (size_t i = 0; i < out.size(); ++i) {
    const float drawn =
        static_cast<float>(kernels::DrawnInteger(key, begin + i)) * unit + scale.mean;
    out[i] = kernels::Bf16OfFloat(drawn);
  }
  if (scale.outlier == 1) return;
  for (size_t i = 0; i < out.size(); ++i) {
    if ((begin + i) % kOutlierPeriod != kOutlierOffset) continue;
    const float drawn =
        static_cast<float>(kernels::DrawnInteger(key, begin + i)) * unit + scale.mean;
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
  base::Hasher key_hasher;
  const uint64_t key = key_hasher.Number(seed_).Bytes(name).Finish().low;
  const Scale scale = ScaleOf(config_, name, shape);
  base::Hasher hasher;
  hasher.Bytes(name).Bytes("BF16").Array(std::span<const int64_t>(shape));
  // Matrices are nearly all there is, and have no outliers.
  if (kernels_ != nullptr && kernels_->draws() && shape.size() == 2) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        tensor.data,
        DrawOnBackend(
            name,
            {.key = key, .unit = UnitOf(scale), .mean = scale.mean, .count = ElementCount(tensor)},
            &hasher));
  } else {
    taken_.push_back(Draw(key, scale, ElementCount(tensor)));
    tensor.data = taken_.back().data();
    const std::string_view bytes(static_cast<const char*>(tensor.data),
                                 taken_.back().size() * sizeof(uint16_t));
    for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
      hasher.Bytes(bytes.substr(begin, kPieceBytes));
    }
  }
  digests_[name] = hasher.Finish();
  return tensor;
}

absl::StatusOr<const void*> RandomWeights::DrawOnBackend(const std::string& name,
                                                         kernels::DrawArgs args,
                                                         base::Hasher* hasher) {
  const size_t bytes = args.count * sizeof(uint16_t);
  LOCKSTEP_ASSIGN_OR_RETURN(drawn_.emplace_back(), kernels_->Allocate(bytes, name));
  args.values = drawn_.back().as<void>();
  kernels_->Draw(args);
  for (kernels::Buffer& piece : pieces_) {
    if (piece.bytes() > 0) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(piece, kernels_->AllocateHost(kPieceBytes, "a piece of weights"));
  }
  // One piece is on its way while the one before it is digested.
  const auto begin_of = [](size_t index) { return index * kPieceBytes; };
  const auto length_of = [&](size_t index) {
    return std::min(kPieceBytes, bytes - begin_of(index));
  };
  std::array<uint64_t, 2> marks = {};
  const auto fetch = [&](size_t index) {
    kernels_->Download(drawn_.back().as<char>() + begin_of(index), length_of(index),
                       pieces_[index % 2].as<void>());
    marks[index % 2] = kernels_->Mark();
  };
  fetch(0);
  for (size_t index = 0; begin_of(index) < bytes; ++index) {
    if (begin_of(index + 1) < bytes) fetch(index + 1);
    LOCKSTEP_RETURN_IF_ERROR(kernels_->WaitFor(marks[index % 2]));
    hasher->Bytes({pieces_[index % 2].as<char>(), length_of(index)});
  }
  return drawn_.back().as<void>();
}

absl::Status RandomWeights::TakeCopy(const std::string& name, const std::string& original) {
  return absl::InternalError(
      absl::StrCat("random weights hold no \"", name, "\" beside \"", original, "\""));
}

}  // namespace lockstep::worker
