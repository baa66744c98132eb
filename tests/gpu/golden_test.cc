// Golden digests of contract version 1 on the CUDA backend: ids and every logprob array of whole
// models, which all ops reach. A change here is a change of the contract and needs a new contract
// version. Bits are those of one GPU model; on others the cases skip themselves.
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/gpu/gpu_test.h"
#include "tests/unit/model/step_driver.h"

namespace lockstep::worker {
namespace {

constexpr char kGpu[] = "NVIDIA H200";
// Over the border of a split of 1024, and an end inside a block and a page.
constexpr int kPromptTokens = 1501;
constexpr int kNewTokens = 48;
constexpr int kSequencePages = 25;  // Of 64 tokens.

struct Golden {
  const char* name;
  const char* model;
  int segments;
  const char* greedy;
  const char* drawn;  // with temperature and all filters.
};
void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

template <typename T>
void Add(const std::vector<T>& values, base::Hasher* hasher) {
  hasher->Array(std::span<const T>(values));
}

std::string DigestOf(const testing::Trace& trace) {
  base::Hasher hasher;
  Add(trace.ids, &hasher);
  for (const LogprobBlock* block : {&trace.scored, &trace.drawn}) {
    Add(block->raw, &hasher);
    Add(block->scaled, &hasher);
    Add(block->entropy, &hasher);
    Add(block->top_ids, &hasher);
    Add(block->top_logprobs, &hasher);
    Add(block->chosen_logprobs, &hasher);
  }
  return hasher.Finish().ToString();
}

// With the kernels of the device, and with those of any GPU.
class DeviceGoldenTest : public ::testing::TestWithParam<std::tuple<Golden, bool>> {};

TEST_P(DeviceGoldenTest, ModelsGiveTheBitsOfVersion1) {
  if (const std::string reason = testing::WhyNoDevice(); !reason.empty()) GTEST_SKIP() << reason;
  const auto& [golden, portable] = GetParam();
  auto kernels = kernels::CreateKernelSet({.backend = "cuda", .portable_kernels = portable});
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  const kernels::BackendTraits traits = (*kernels)->traits();
  if (!traits.architecture.starts_with(kGpu)) GTEST_SKIP() << "the bits are those of " << kGpu;
  EXPECT_EQ(traits.architecture, absl::StrCat(kGpu, portable ? ", portable kernels" : ""));
  EXPECT_EQ(traits.contract_version, 1);
  EXPECT_EQ(traits.key_block_tokens, 128);
  const auto model = LoadModel({.model = golden.model,
                                .reduction_segments = golden.segments,
                                .split_kv_size = 1024,
                                .kv_bytes = int64_t{1} << 30,
                                .sequences_max = 8,
                                .chunk_tokens = 2048,
                                .context_tokens_max = 4096},
                               *std::move(kernels));
  ASSERT_TRUE(model.ok()) << model.status();
  testing::DrivenSequence sequence = {
      .prompt = testing::RandomIds(23, kPromptTokens, model->facts.vocabulary),
      .new_tokens = kNewTokens,
      .sampling = {.temperature = 0}};
  const testing::Schedule schedule = {.blocks = testing::Blocks(0, 1, kSequencePages)};
  EXPECT_EQ(DigestOf(testing::Drive(model->executor.get(), sequence, schedule)), golden.greedy);
  sequence.sampling = {.sub_seed = 0x9E3779B97F4A7C15,
                       .temperature = 0.8f,
                       .top_k = 200,
                       .top_p = 0.95f,
                       .min_p = 0.001f};
  EXPECT_EQ(DigestOf(testing::Drive(model->executor.get(), sequence, schedule)), golden.drawn);
}

constexpr Golden kModels[] = {{.name = "Tiny",
                               .model = "random:qwen3-tiny",
                               .segments = 1,
                               .greedy = "3e682c0d90e85f82ba3c97157f338995",
                               .drawn = "ba6171b398210ea815e2f3fe7d7e06ce"},
                              {.name = "TinyTwoSegments",
                               .model = "random:qwen3-tiny",
                               .segments = 2,
                               .greedy = "d3548881dc5a20057430395f9af1fa34",
                               .drawn = "3516a70b76678f1b7a9515d57f918dd3"},
                              {.name = "Qwen3Tied",
                               .model = "random:qwen3-0.6b",
                               .segments = 1,
                               .greedy = "9e6fc88e33209e90ac6d3eef4838fbfa",
                               .drawn = "e7b560bc86635bf27a33debbe27da255"}};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Golden, bool>>& info) {
  const auto& [golden, portable] = info.param;
  return absl::StrCat(golden.name, portable ? "Portable" : "");
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceGoldenTest,
                         ::testing::Combine(::testing::ValuesIn(kModels), ::testing::Bool()),
                         NameOf);

}  // namespace
}  // namespace lockstep::worker
