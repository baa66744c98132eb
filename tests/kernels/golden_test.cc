// Golden digests of every op: the contract's bits of version 1 on the CPU backend. A change here
// is a change of the contract and needs a new contract version.
#include "common/base/hash.h"
#include "tests/kernels/attention_rig.h"
#include "tests/kernels/kernel_test.h"

namespace lockstep::kernels {
namespace {

using testing::Bf16Data;
using testing::UniformData;
using testing::WideData;

template <typename T>
std::string DigestOf(const std::vector<T>& values) {
  return base::Hasher().Array(std::span<const T>(values)).Finish().ToString();
}

class GoldenTest : public KernelTest {
 protected:
  std::string LinearDigest(int segments, bool bf16) {
    const auto w = WideData(1, 96 * 512);
    const auto bits = Bf16Data(w);
    const auto bias = WideData(2, 96);
    const HostTensor weight = bf16 ? HostTensor{"w", bits.data(), DType::kBf16, {96, 512}}
                                   : HostTensor{"w", w.data(), DType::kF32, {96, 512}};
    const HostTensor bias_tensor{"b", bias.data(), DType::kF32, {96}};
    const auto packed =
        kernels().PackLinear({&weight, 1}, {&bias_tensor, 1}, {.segments = segments}).value();
    float* y = Put(WideData(3, 29 * 96));
    kernels().Linear({.weight = packed.get(),
                      .rows = 29,
                      .x = Put(WideData(4, 29 * 512)),
                      .x_stride = 512,
                      .y = y,
                      .y_stride = 96,
                      .accumulate = true});
    return DigestOf(Get(y, 29 * 96));
  }
};

TEST_P(GoldenTest, Traits) {
  const BackendTraits& traits = kernels().traits();
  EXPECT_EQ(traits.name, "cpu");
  EXPECT_EQ(traits.architecture, "x86-64-v3");
  EXPECT_EQ(traits.contract_version, 1);
  EXPECT_EQ(traits.activation, DType::kF32);
  EXPECT_EQ(traits.kv, DType::kF32);
  EXPECT_EQ(traits.kv_block_tokens, 32);
}

TEST_P(GoldenTest, Linear) {
  EXPECT_EQ(LinearDigest(1, false), "299202e629f7ccd96c5e7d5283663438");
  EXPECT_EQ(LinearDigest(4, false), "0bf0627be4066ffbd7fcd9ffdfdf786a");
  EXPECT_EQ(LinearDigest(1, true), "acdafda8787f9f9ca405232c1d991df3");
  EXPECT_EQ(LinearDigest(8, true), "776e9041122e210c5bc4b2be9e9eaece");
}

TEST_P(GoldenTest, RmsNorm) {
  float* y = Put(std::vector<float>(7 * 200));
  kernels().RmsNorm({.weight = Put(UniformData(5, 200)),
                     .epsilon = 1e-6f,
                     .width = 200,
                     .rows = 7,
                     .x = Put(WideData(6, 7 * 200)),
                     .x_stride = 200,
                     .y = y,
                     .y_stride = 200});
  EXPECT_EQ(DigestOf(Get(y, 7 * 200)), "2c661f008cc65f6fd140c1ac58debf5b");
}

TEST_P(GoldenTest, SwiGlu) {
  float* y = Put(std::vector<float>(7 * 200));
  kernels().SwiGlu({.width = 200, .rows = 7, .gate_up = Put(WideData(7, 7 * 400, 6)), .y = y});
  EXPECT_EQ(DigestOf(Get(y, 7 * 200)), "6ded880177bf53b989a198dbbeb672f8");
}

TEST_P(GoldenTest, RopeTable) {
  const Buffer table =
      kernels().MakeRopeTable({.theta = 1e6, .head_dim = 128, .positions = 4096}).value();
  EXPECT_EQ(DigestOf(Get(table.as<float>(), 4096 * 128)), "4f225cabe5b616964504c3934415f26f");
}

TEST_P(GoldenTest, QkvPrepareAndAttention) {
  AttentionRig rig(kernels(), {.q_heads = 6, .kv_heads = 2, .head_dim = 48, .split_kv_size = 96});
  const auto y = rig.Step({{.stream = 8, .end = 130}, {.slot = 1, .stream = 9, .end = 33}});
  EXPECT_EQ(DigestOf(rig.prepared()), "4b949dbaa06534b2c42e55b91e9979c3");
  EXPECT_EQ(DigestOf(y), "5a19e605e873cb20bfd9e9177cd5bf77");
}

TEST_P(GoldenTest, Sample) {
  constexpr int kRows = 256;
  constexpr int kVocabulary = 700;
  std::vector<SamplingRow> params;
  for (int row = 0; row < kRows; ++row) {
    params.push_back({.sub_seed = 0x0123456789ABCDEFu * static_cast<uint64_t>(row),
                      .position = row * 31,
                      .temperature = 0.5f + static_cast<float>(row % 3) * 0.5f,
                      .top_k = row % 4 == 1 ? 40 : 0,
                      .top_p = row % 4 == 2 ? 0.9f : 1.0f,
                      .min_p = row % 4 == 3 ? 0.05f : 0.0f,
                      .repetition_penalty = 1.1f,
                      .frequency_penalty = 0.1f,
                      .presence_penalty = 0.2f,
                      .bias_end = 1,
                      .count_end = 2});
  }
  int32_t* ids = Put(std::vector<int32_t>(kRows));
  SampleError* errors = Put(std::vector<SampleError>(kRows));
  kernels().Sample({.rows = kRows,
                    .vocabulary = kVocabulary,
                    .vocabulary_sampled = 690,
                    .logits = Put(UniformData(10, kRows * kVocabulary, 6)),
                    .row_params = Put(params),
                    .biases = Put(std::vector<IdBias>{{5, 2.5f}}),
                    .counts = Put(std::vector<IdCount>{{7, 2, 1}, {8, 0, 1}}),
                    .ids = ids,
                    .errors = errors});
  EXPECT_EQ(DigestOf(Get(ids, kRows)), "b702980df089eeb386e3b66d1bc9bbd2");
}

TEST_P(GoldenTest, Logprobs) {
  constexpr int kRows = 9;
  constexpr int kVocabulary = 1500;
  std::vector<LogprobRow> rows;
  for (int row = 0; row < kRows; ++row) {
    rows.push_back(
        {.target_id = row * 100, .temperature = 0.7f, .top_count = 8, .want_entropy = 1});
  }
  float* raw = Put(std::vector<float>(kRows));
  float* scaled = Put(std::vector<float>(kRows));
  float* entropy = Put(std::vector<float>(kRows));
  int32_t* top_ids = Put(std::vector<int32_t>(kRows * kTopLogprobsMax));
  float* top = Put(std::vector<float>(kRows * kTopLogprobsMax));
  SampleError* errors = Put(std::vector<SampleError>(kRows));
  kernels().Logprobs({.rows = kRows,
                      .vocabulary = kVocabulary,
                      .logits = Put(UniformData(11, kRows * kVocabulary, 9)),
                      .row_params = Put(rows),
                      .raw = raw,
                      .scaled = scaled,
                      .entropy = entropy,
                      .top_ids = top_ids,
                      .top_logprobs = top,
                      .errors = errors});
  EXPECT_EQ(DigestOf(Get(raw, kRows)), "7fb89d350e14b7338076d3353b162ae4");
  EXPECT_EQ(DigestOf(Get(scaled, kRows)), "2e67090d65e36c1695e271b75389578b");
  EXPECT_EQ(DigestOf(Get(entropy, kRows)), "ced90a8b44c1a5d6a640e0536cf170c9");
  EXPECT_EQ(DigestOf(Get(top_ids, kRows * kTopLogprobsMax)), "e04dd0ccaa1a9f088f7ce7c89d9c2e32");
  EXPECT_EQ(DigestOf(Get(top, kRows * kTopLogprobsMax)), "c076ca9477b3c827002fff94b8831f45");
}

TEST_P(GoldenTest, EmbeddingAndGather) {
  const auto bits = Bf16Data(WideData(12, 40 * 65));
  const Buffer table = kernels().UploadTable({"t", bits.data(), DType::kBf16, {40, 65}}).value();
  float* y = Put(std::vector<float>(3 * 65));
  float* gathered = Put(std::vector<float>(2 * 65));
  kernels().Embedding({.table = table.as<void>(),
                       .table_dtype = DType::kBf16,
                       .width = 65,
                       .rows = 3,
                       .ids = Put(std::vector<int32_t>{39, 0, 20}),
                       .y = y});
  kernels().GatherRows({.width = 65,
                        .rows = 2,
                        .source_rows = Put(std::vector<int32_t>{2, 0}),
                        .x = y,
                        .y = gathered});
  EXPECT_EQ(DigestOf(Get(gathered, 2 * 65)), "7ab51e9e4f97a0f1b5c97dbd8aec69ce");
}

INSTANTIATE_TEST_SUITE_P(Cpu, GoldenTest, ::testing::ValuesIn(AllConfigurations()), NameOf);

}  // namespace
}  // namespace lockstep::kernels
