#include "tests/unit/model/reference_transformer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/philox.h"
#include "tests/support/tolerance.h"

namespace lockstep::testing {
namespace {

using Rows = std::vector<std::vector<double>>;

constexpr int kAttentionBlock = 32;

std::vector<double> ToDoubles(const worker::Checkpoint::Tensor& tensor) {
  const std::span<const std::byte> data = tensor.file->Data(*tensor.entry);
  const size_t bytes = tensor.entry->element_bytes;
  std::vector<double> values;
  for (size_t at = 0; at < data.size(); at += bytes) {
    uint32_t bits = 0;
    // A bf16 is the upper half of an fp32.
    std::memcpy(reinterpret_cast<char*>(&bits) + (4 - bytes), data.data() + at, bytes);
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

std::string BiasOf(const std::string& weight) {
  return weight.substr(0, weight.rfind('.')) + ".bias";
}

// Sum of four uniforms, scaled to variance one.
class NoiseSource {
 public:
  explicit NoiseSource(uint32_t stream) : stream_(stream) {}
  double Next() {
    if (stream_ == 0) return 0;
    const auto words = base::Philox4x32({index_++, 0, 0, 0}, {stream_, 0});
    double sum = 0;
    for (const uint32_t word : words) sum += static_cast<int32_t>(word) * 0x1p-31;
    return sum * std::sqrt(0.75);
  }
  double Relative(double units) { return 1 + kUnitRoundoff * units * Next(); }

 private:
  const uint32_t stream_;
  uint32_t index_ = 0;
};

}  // namespace

// One run over one sequence.
class ReferenceTransformer::Pass {
 public:
  Pass(const ReferenceTransformer& model, uint32_t noise)
      : model_(model), config_(model.config_), noise_(noise) {}

  Rows Hidden(std::span<const int32_t> ids) {
    const auto embedding = model_.Weight("model.embed_tokens.weight");
    Rows x;
    for (const int32_t id : ids) {
      const auto row = embedding.subspan(size_t(id) * config_.hidden, config_.hidden);
      x.emplace_back(row.begin(), row.end());
    }
    for (int layer = 0; layer < config_.layers; ++layer) {
      const std::string prefix = absl::StrCat("model.layers.", layer, ".");
      Add(Attention(prefix + "self_attn.", Norm(prefix + "input_layernorm.weight", x)), &x);
      Add(FeedForward(prefix + "mlp.", Norm(prefix + "post_attention_layernorm.weight", x)), &x);
    }
    return x;
  }

  Rows Norm(const std::string& name, Rows x) {
    const auto weight = model_.Weight(name);
    for (std::vector<double>& row : x) NormRow(weight, row);
    return x;
  }

  Rows Linear(const std::string& name, const Rows& x) {
    const auto weight = model_.Weight(name);
    const auto bias = model_.weights_.find(BiasOf(name));
    const size_t inputs = x[0].size();
    Rows y;
    for (const std::vector<double>& row : x) {
      std::vector<double>& out = y.emplace_back();
      for (size_t o = 0; o < weight.size() / inputs; ++o) {
        out.push_back(Dot(row, weight.subspan(o * inputs, inputs)));
        if (bias == model_.weights_.end()) continue;
        out.back() = (out.back() + bias->second[o]) * noise_.Relative(1);
      }
    }
    return y;
  }

 private:
  double Dot(std::span<const double> a, std::span<const double> b) {
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      sum += a[i] * b[i];
      squares += sum * sum;
    }
    return sum + kUnitRoundoff * std::sqrt(squares) * noise_.Next();
  }

  void NormRow(std::span<const double> weight, std::span<double> row) {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double width = static_cast<double>(row.size());
    const double scale = noise_.Relative(std::sqrt(std::log2(width) / 4 + 3)) /
                         std::sqrt(squares / width + config_.rms_norm_epsilon);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] *= scale * weight[i] * noise_.Relative(std::sqrt(2));
    }
  }

  // Angles are fp32 products, as the model defines them.
  void Rotate(int position, std::span<double> head) {
    const size_t half = head.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(head.size());
      const float frequency = 1.0f / static_cast<float>(std::pow(config_.rope_theta, exponent));
      const double angle = static_cast<float>(position) * frequency;
      const double first = head[i];
      const double second = head[half + i];
      head[i] = (first * std::cos(angle) - second * std::sin(angle)) * noise_.Relative(2);
      head[half + i] = (second * std::cos(angle) + first * std::sin(angle)) * noise_.Relative(2);
    }
  }

  void PrepareHeads(const std::string& norm, Rows* rows) {
    for (size_t position = 0; position < rows->size(); ++position) {
      std::span<double> row = (*rows)[position];
      for (size_t begin = 0; begin < row.size(); begin += config_.head_dim) {
        if (config_.qk_norm) {
          NormRow(model_.Weight(norm), row.subspan(begin, config_.head_dim));
        }
        Rotate(static_cast<int>(position), row.subspan(begin, config_.head_dim));
      }
    }
  }

  Rows Attention(const std::string& prefix, const Rows& x) {
    Rows q = Linear(prefix + "q_proj.weight", x);
    Rows k = Linear(prefix + "k_proj.weight", x);
    const Rows v = Linear(prefix + "v_proj.weight", x);
    PrepareHeads(prefix + "q_norm.weight", &q);
    PrepareHeads(prefix + "k_norm.weight", &k);
    Rows mixed;
    for (size_t row = 0; row < x.size(); ++row) {
      std::vector<double>& out = mixed.emplace_back();
      for (int head = 0; head < config_.q_heads; ++head) AttendHead(q[row], k, v, row, head, &out);
    }
    return Linear(prefix + "o_proj.weight", mixed);
  }

  void AttendHead(std::span<const double> q, const Rows& k, const Rows& v, size_t row, int head,
                  std::vector<double>* out) {
    const size_t dim = config_.head_dim;
    const size_t kv_begin = size_t(head / (config_.q_heads / config_.kv_heads)) * dim;
    std::vector<double> p;
    for (size_t t = 0; t <= row; ++t) {
      const std::span<const double> key = std::span<const double>(k[t]).subspan(kv_begin, dim);
      p.push_back(Dot(q.subspan(head * dim, dim), key) / std::sqrt(double(dim)));
    }
    const double largest = *std::max_element(p.begin(), p.end());
    double total = 0;
    for (double& value : p) {
      value = std::exp(value - largest) * noise_.Relative(2 + std::abs(value - largest));
      total += value;
    }
    const double rescaling = std::sqrt(2.0 * double(row / kAttentionBlock) + 1);
    std::vector<double> column(row + 1);
    for (size_t i = 0; i < dim; ++i) {
      for (size_t t = 0; t <= row; ++t) column[t] = v[t][kv_begin + i];
      out->push_back(Dot(p, column) / total * noise_.Relative(rescaling));
    }
  }

  Rows FeedForward(const std::string& prefix, const Rows& x) {
    Rows gate = Linear(prefix + "gate_proj.weight", x);
    const Rows up = Linear(prefix + "up_proj.weight", x);
    for (size_t row = 0; row < x.size(); ++row) {
      for (size_t i = 0; i < gate[row].size(); ++i) {
        const double g = gate[row][i];
        gate[row][i] = g / (1 + std::exp(-g)) * up[row][i] * noise_.Relative(std::sqrt(5));
      }
    }
    return Linear(prefix + "down_proj.weight", gate);
  }

  void Add(const Rows& y, Rows* x) {
    for (size_t row = 0; row < y.size(); ++row) {
      for (size_t i = 0; i < y[row].size(); ++i) {
        (*x)[row][i] = ((*x)[row][i] + y[row][i]) * noise_.Relative(1);
      }
    }
  }

  const ReferenceTransformer& model_;
  const worker::ModelConfig& config_;
  NoiseSource noise_;
};

ReferenceTransformer::ReferenceTransformer(const worker::ModelConfig& config,
                                           const worker::Checkpoint& checkpoint)
    : config_(config) {
  for (const auto& [name, tensor] : checkpoint.tensors()) weights_[name] = ToDoubles(tensor);
  if (config.tied_embeddings) weights_["lm_head.weight"] = weights_["model.embed_tokens.weight"];
}

std::span<const double> ReferenceTransformer::Weight(const std::string& name) const {
  const auto found = weights_.find(name);
  LOCKSTEP_CHECK(found != weights_.end()) << name;
  return found->second;
}

std::vector<double> ReferenceTransformer::Logits(std::span<const int32_t> ids,
                                                 std::span<const int> positions,
                                                 uint32_t noise) const {
  Pass pass(*this, noise);
  const Rows hidden = pass.Hidden(ids);
  Rows chosen;
  for (const int position : positions) chosen.push_back(hidden[position]);
  const Rows logits = pass.Linear("lm_head.weight", pass.Norm("model.norm.weight", chosen));
  std::vector<double> flat;
  for (const std::vector<double>& row : logits) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

}  // namespace lockstep::testing
