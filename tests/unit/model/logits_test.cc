#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/regular_file.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/checkpoint.h"
#include "services/worker/model/json_file.h"
#include "services/worker/model/step_arrays.h"
#include "services/worker/model/tensor_reader.h"
#include "services/worker/model/transformer.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/unit/model/reference_transformer.h"
#include "tests/unit/model/step_driver.h"

// Logits of the CPU backend against PyTorch's in fp64 on the same checkpoints (fixtures/README.md),
// and against PyTorch's own fp32 run.
//
// First bound: the fp64 reference of this folder is run kTrials times with random errors of the
// size of fp32 roundings after every operation (reference_transformer.h derives the sizes). The
// logits then scatter around the exact ones; with sigma the root mean square of that scatter over
// the logits of a row, no logit of a correct fp32 run may be further off than kSigmas * sigma.
// Kernels that lose more than roundings (a wrong epsilon, a bf16 accumulator, a bad exp) are orders
// beyond it.
//
// Second bound: sqrt(k) times the error of PyTorch's fp32 run, k being the longest sum of products
// of the model. Ours is an ascending sum, which carries about sqrt(k) roundings, where a library's
// blocked sum may carry as few as one.
//
// On the fixtures our error is 0.5 to 3 times PyTorch's, and the first bound 3 to 12 times our
// error.
namespace lockstep::worker {
namespace {

constexpr char kFixtures[] = "tests/unit/model/fixtures/logits/";
constexpr int kTrials = 4;
// A row has hundreds of logits, whose own sigmas differ by a small factor from the row's.
constexpr double kSigmas = 8;
// What this folder's reference and PyTorch's fp64 run may differ by: both err by roundings of
// 2^-53.
constexpr double kFp64Agreement = 1e-9;

struct Case {
  std::vector<int32_t> ids;
  std::vector<int> positions;
  std::vector<double> fp64;
  std::vector<float> fp32;
};

template <typename T>
std::vector<T> Read(const std::string& bytes, const nlohmann::json& offset, size_t count) {
  std::vector<T> values(count);
  LOCKSTEP_CHECK_LE(offset.get<size_t>() + count * sizeof(T), bytes.size());
  std::memcpy(values.data(), bytes.data() + offset.get<size_t>(), count * sizeof(T));
  return values;
}

struct Model {
  std::string directory;
  std::vector<Case> cases;
};

Model ReadModel(int index) {
  const absl::StatusOr<std::string> text =
      base::ReadRegularFile(absl::StrCat(kFixtures, "manifest.json"), 1 << 20);
  LOCKSTEP_CHECK(text.ok()) << text.status().ToString();
  const nlohmann::json manifest = nlohmann::json::parse(*text);
  const nlohmann::json& entry = manifest["models"].at(index);
  const absl::StatusOr<std::string> bytes =
      base::ReadRegularFile(absl::StrCat(kFixtures, entry["file"].get<std::string>()), 64 << 20);
  LOCKSTEP_CHECK(bytes.ok()) << bytes.status().ToString();
  Model model;
  model.directory = entry["directory"].get<std::string>();
  for (const nlohmann::json& item : entry["cases"]) {
    Case& one = model.cases.emplace_back();
    one.ids = item["ids"].get<std::vector<int32_t>>();
    one.positions = item["positions"].get<std::vector<int>>();
    const size_t count = one.positions.size() * entry["vocab_size"].get<size_t>();
    one.fp64 = Read<double>(*bytes, item["fp64_offset_bytes"], count);
    one.fp32 = Read<float>(*bytes, item["fp32_offset_bytes"], count);
  }
  return model;
}

// A transformer on the CPU backend with a KV pool for one sequence.
class CpuModel {
 public:
  explicit CpuModel(const std::string& directory)
      : config_(*LoadModelConfig(directory)), checkpoint_(*Checkpoint::Open(directory)) {
    kernels_ = *kernels::CreateKernelSet({.backend = "cpu", .threads = 2});
    TensorReader reader(checkpoint_);
    ModelWeights weights = *LoadWeights(config_, &reader, {}, kernels_.get());
    transformer_ = *Transformer::Create(
        config_, std::move(weights), {.rows_max = 512, .logits_rows_max = 16, .split_kv_size = 64},
        kernels_.get());
    kv_ = *kernels_->CreateKvCache({.layers = config_.layers,
                                    .kv_heads = config_.kv_heads,
                                    .head_dim = config_.head_dim,
                                    .blocks = kBlocks,
                                    .block_tokens = kernels_->traits().kv_block_tokens});
  }

  std::vector<float> Logits(const Case& one) {
    StepArrays arrays({.rows_max = 512,
                       .sequences_max = 1,
                       .context_tokens_max = 512,
                       .kv_blocks = kBlocks,
                       .kv_block_tokens = kv_->shape().block_tokens,
                       .vocabulary = config_.vocabulary});
    StepArena arena;
    LOCKSTEP_CHECK(arena.Allocate(kernels_.get(), arrays.BytesMax(), "step inputs").ok());
    std::vector<int32_t> blocks(kBlocks);
    for (int i = 0; i < kBlocks; ++i) blocks[i] = kBlocks - 1 - i;
    StepSequence sequence;
    sequence.tokens = one.ids;
    sequence.blocks = blocks;
    arena.Begin(0);
    arrays.Build({&sequence, 1}, /*decode_rows=*/0, /*drawn_slots=*/{}, &arena);
    arena.Upload(kernels_.get());
    transformer_->Forward(arrays.shape(), arrays.inputs(), kv_.get());
    const std::vector<int32_t> rows(one.positions.begin(), one.positions.end());
    DeviceArray<int32_t> device_rows;
    LOCKSTEP_CHECK(device_rows.Reserve(kernels_.get(), rows.size(), "rows").ok());
    device_rows.Upload(kernels_.get(), rows);
    const float* logits = transformer_->Logits(device_rows.data(), static_cast<int>(rows.size()));
    std::vector<float> host(rows.size() * config_.vocabulary);
    kernels_->Download(logits, host.size() * sizeof(float), host.data());
    LOCKSTEP_CHECK(kernels_->Synchronize().ok());
    return host;
  }

  const ModelConfig& config() const { return config_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  static constexpr int kBlocks = 16;

  const ModelConfig config_;
  const Checkpoint checkpoint_;
  std::unique_ptr<kernels::KernelSet> kernels_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<kernels::KvCache> kv_;
};

template <typename T>
double LargestError(const T& actual, std::span<const double> exact) {
  double largest = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(actual[i]) - exact[i]));
  }
  return largest;
}

// The first bound, of each position.
std::vector<double> RoundingBounds(const testing::ReferenceTransformer& reference, const Case& one,
                                   std::span<const double> exact) {
  const size_t vocabulary = exact.size() / one.positions.size();
  std::vector<double> variance(one.positions.size(), 0);
  for (uint32_t trial = 1; trial <= kTrials; ++trial) {
    const std::vector<double> noisy = reference.Logits(one.ids, one.positions, trial);
    for (size_t i = 0; i < noisy.size(); ++i) {
      const double error = noisy[i] - exact[i];
      variance[i / vocabulary] += error * error / static_cast<double>(kTrials * vocabulary);
    }
  }
  std::vector<double> bounds;
  for (const double value : variance) bounds.push_back(kSigmas * std::sqrt(value));
  return bounds;
}

class LogitsTest : public ::testing::TestWithParam<int> {};

TEST_P(LogitsTest, ErrByNoMoreThanRoundingsExplain) {
  const Model model = ReadModel(GetParam());
  CpuModel cpu(model.directory);
  const testing::ReferenceTransformer reference(cpu.config(), cpu.checkpoint());
  const size_t vocabulary = static_cast<size_t>(cpu.config().vocabulary);
  const double pytorch_factor =
      std::sqrt(std::max({cpu.config().hidden, cpu.config().ffn, cpu.config().q_width()}));
  for (const Case& one : model.cases) {
    const std::vector<float> ours = cpu.Logits(one);
    const std::vector<double> exact = reference.Logits(one.ids, one.positions, 0);
    ASSERT_LE(LargestError(exact, one.fp64), kFp64Agreement);
    const std::vector<double> bounds = RoundingBounds(reference, one, exact);
    for (size_t row = 0; row < one.positions.size(); ++row) {
      const double bound = bounds[row];
      const std::span<const double> fp64 =
          std::span<const double>(one.fp64).subspan(row * vocabulary, vocabulary);
      const double error =
          LargestError(std::span<const float>(ours).subspan(row * vocabulary, vocabulary), fp64);
      const double pytorch = LargestError(
          std::span<const float>(one.fp32).subspan(row * vocabulary, vocabulary), fp64);
      const std::string where =
          absl::StrCat(one.ids.size(), " tokens, position ", one.positions[row], ": ours ", error,
                       ", PyTorch fp32 ", pytorch, ", bound ", bound);
      EXPECT_LE(error, bound) << where;
      EXPECT_LE(error, pytorch_factor * pytorch) << where;
    }
  }
}

// Biases and no norm of heads, which no fixture has: against this folder's reference alone, whose
// other operations the fixtures have shown to be PyTorch's.
TEST(Qwen2LogitsTest, ErrByNoMoreThanRoundingsExplain) {
  const testing::TemporaryDirectory directory;
  testing::WriteCheckpoint(directory.path(),
                           {.seed = 6, .head_dim = 16, .family = testing::Family::kQwen2});
  CpuModel cpu(directory.path());
  const testing::ReferenceTransformer reference(cpu.config(), cpu.checkpoint());
  const Case one = {.ids = testing::RandomIds(3, 100, 320), .positions = {0, 1, 31, 32, 64, 99}};
  const std::vector<float> ours = cpu.Logits(one);
  const std::vector<double> exact = reference.Logits(one.ids, one.positions, 0);
  const std::vector<double> bounds = RoundingBounds(reference, one, exact);
  for (size_t row = 0; row < bounds.size(); ++row) {
    const double error = LargestError(std::span<const float>(ours).subspan(row * 320, 320),
                                      std::span<const double>(exact).subspan(row * 320, 320));
    EXPECT_LE(error, bounds[row]) << "position " << one.positions[row];
    EXPECT_GT(error, bounds[row] / 1000) << "a bound that says nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LogitsTest, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace lockstep::worker
