// Attention on the device. The reference kernel writes the contract down in plain code; every fast
// kernel must give its bits, at every place where a schedule could show: chunk borders, tiles,
// batches, neighbours, pages, repetition. Accuracy has a bound derived from the operands.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/attention_rig.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/test_streams.h"
#include "tests/support/bitwise.h"
#include "tests/support/tolerance.h"

namespace lockstep {
namespace {

using kernels::cuda::KernelPath;
using testing::AttentionRig;
using testing::BitwiseEqual;
using testing::Chunk;
using testing::RigOptions;
using testing::RigRun;

// Around every border of pages, blocks and splits.
constexpr int kEdges[] = {0,   1,   63,  64,   127,  128,  255,  256,
                          511, 512, 513, 1023, 1024, 1777, 2047, 2999};

std::vector<float> Row(const std::vector<float>& y, size_t row, size_t width) {
  const auto begin = y.begin() + static_cast<ptrdiff_t>(row * width);
  return {begin, begin + static_cast<ptrdiff_t>(width)};
}

bool AllFinite(const std::vector<float>& y) {
  return std::all_of(y.begin(), y.end(), [](float value) { return std::isfinite(value); });
}

// The kernels, and contract constants under measurement: block, split.
class AttentionOrderTest : public testing::GpuTest,
                           public ::testing::WithParamInterface<std::tuple<KernelPath, int, int>> {
 protected:
  void SetUp() override {
    const std::string reason = testing::WhyNoDevice(std::get<0>(GetParam()));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  RigOptions Options() const {
    const auto& [path, kv_block, split_kv_size] = GetParam();
    return {.path = path, .kv_block = kv_block, .split_kv_size = split_kv_size};
  }
};

std::string NameOfOrder(const ::testing::TestParamInfo<std::tuple<KernelPath, int, int>>& info) {
  const auto& [path, kv_block, split_kv_size] = info.param;
  return absl::StrCat(testing::NameOf(path), "Block", kv_block, "Split", split_kv_size);
}

INSTANTIATE_TEST_SUITE_P(BlocksAndSplits, AttentionOrderTest,
                         ::testing::Combine(testing::BothPaths(), ::testing::Values(64, 128),
                                            ::testing::Values(256, 512, 1024)),
                         NameOfOrder);

TEST_P(AttentionOrderTest, FastKernelsGiveTheReferencesBits) {
  AttentionRig rig(Options());
  const std::vector<Chunk> step = {{.slot = 0, .stream = 1, .begin = 2999, .end = 3000},
                                   {.slot = 1, .stream = 2, .begin = 700, .end = 1100},
                                   {.slot = 2, .stream = 3, .begin = 0, .end = 130},
                                   {.slot = 3, .stream = 4, .begin = 511, .end = 514}};
  const std::vector<float> reference = rig.Step(step, {.reference = true}, 5);
  EXPECT_TRUE(AllFinite(reference));
  EXPECT_TRUE(BitwiseEqual(rig.Step(step, {}, 5), reference, rig.row_width()));
}

TEST_P(AttentionOrderTest, DecodeEqualsPrefillAtEveryEdge) {
  AttentionRig rig(Options());
  const std::vector<float> prefill = rig.Step({{.stream = 1, .begin = 0, .end = 3000}});
  ASSERT_TRUE(AllFinite(prefill));
  for (const int position : kEdges) {
    const std::vector<float> decode =
        rig.Step({{.stream = 1, .begin = position, .end = position + 1}});
    EXPECT_TRUE(BitwiseEqual(decode, Row(prefill, static_cast<size_t>(position), rig.row_width())))
        << "position " << position;
  }
}

// A bf16 output hides an fp32 sum's last bits: of 65,000 values one shows a difference of one unit.
// Where the sum cancels down to the rounding of its probabilities, one of about a hundred does.
// That rounding bounds it: each probability is off by 2^-9 of itself at most, and values are
// below 1.
TEST_P(AttentionOrderTest, WhatIsLeftOfCancellingSumsIsTheSame) {
  RigOptions options = Options();
  options.cancel_period = 192;
  AttentionRig rig(options);
  const std::vector<float> prefill = rig.Step({{.stream = 1, .begin = 0, .end = 2688}});
  for (const int position : {383, 767, 1151, 1535, 2303, 2687}) {
    const std::vector<Chunk> step = {{.stream = 1, .begin = position, .end = position + 1}};
    const std::vector<float> reference = rig.Step(step, {.reference = true});
    EXPECT_TRUE(std::all_of(reference.begin(), reference.end(),
                            [](float value) { return std::abs(value) < 0x1p-7f; }))
        << "sums do not cancel at position " << position;
    EXPECT_TRUE(BitwiseEqual(rig.Step(step), reference)) << "decode at position " << position;
    EXPECT_TRUE(
        BitwiseEqual(Row(prefill, static_cast<size_t>(position), rig.row_width()), reference))
        << "prefill at position " << position;
  }
}

TEST_P(AttentionOrderTest, EveryScheduleGivesTheSameBits) {
  AttentionRig rig(Options());
  const std::vector<Chunk> step = {{.slot = 0, .stream = 1, .begin = 1000, .end = 1500},
                                   {.slot = 1, .stream = 2, .begin = 1023, .end = 1024},
                                   {.slot = 2, .stream = 3, .begin = 0, .end = 65}};
  const std::vector<float> expected = rig.Step(step);
  for (const int rows : {64, 128}) {
    for (const bool split_decode : {true, false}) {
      const RigRun run{.schedule = {.prefill_rows = rows,
                                    .split_decode = split_decode,
                                    .multiprocessors = split_decode ? 132 : 7}};
      EXPECT_TRUE(BitwiseEqual(rig.Step(step, run), expected, rig.row_width()))
          << rows << " rows, " << (split_decode ? "split" : "whole") << " decode";
    }
  }
}

// A step of every kind of work, with odd sizes: what Hopper's own kernels leave, the portable ones
// do too.
TEST_P(AttentionOrderTest, TheOtherPathGivesTheSameBits) {
  const KernelPath other =
      std::get<0>(GetParam()) == KernelPath::kSm90 ? KernelPath::kPortable : KernelPath::kSm90;
  if (const std::string reason = testing::WhyNoDevice(other); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const std::vector<Chunk> step = {{.slot = 0, .stream = 1, .begin = 1777, .end = 2891},
                                   {.slot = 1, .stream = 2, .begin = 2047, .end = 2049},
                                   {.slot = 2, .stream = 3, .begin = 0, .end = 333},
                                   {.slot = 3, .stream = 4, .begin = 2998, .end = 2999}};
  RigOptions options = Options();
  const std::vector<float> expected = AttentionRig(options).Step(step, {}, 7);
  ASSERT_TRUE(AllFinite(expected));
  options.path = other;
  AttentionRig rig(options);
  EXPECT_TRUE(BitwiseEqual(rig.Step(step, {}, 7), expected, rig.row_width()));
}

// Sequences of one to six splits, rows that see no key of their sequence's last split among them.
TEST_P(AttentionOrderTest, SplitsInTurnGiveTheBitsOfSplitsMergedThroughMemory) {
  RigOptions options = Options();
  options.sequences = 8;
  AttentionRig rig(options);
  const int split = options.split_kv_size;
  std::vector<Chunk> step;
  for (const int keys : {split / 2, split + 1, split + 100, 2 * split, 3 * split - 5, 2999}) {
    const int slot = static_cast<int>(step.size());
    if (keys <= 2999) {
      step.push_back({.slot = slot,
                      .stream = static_cast<uint32_t>(slot + 1),
                      .begin = keys - 1,
                      .end = keys});
    }
  }
  const int slot = static_cast<int>(step.size());
  step.push_back({.slot = slot, .stream = 9, .begin = split - 2, .end = split + 1});
  const std::vector<float> reference = rig.Step(step, {.reference = true});
  // One place takes all units in turn; 132 multiprocessors have more places than units.
  for (const int multiprocessors : {1, 132}) {
    for (const bool whole : {false, true}) {
      const RigRun run{.schedule = {.whole_sequences = whole, .multiprocessors = multiprocessors}};
      EXPECT_TRUE(BitwiseEqual(rig.Step(step, run), reference, rig.row_width()))
          << multiprocessors << " multiprocessors, whole " << whole;
    }
  }
}

class AttentionTest : public testing::GpuPathTest {};

INSTANTIATE_TEST_SUITE_P(Paths, AttentionTest, testing::BothPaths(), testing::NameOfPath);

TEST_P(AttentionTest, ChunkCutsDoNotShow) {
  AttentionRig rig({.path = GetParam()});
  const std::vector<float> whole = rig.Step({{.stream = 1, .begin = 0, .end = 3000}});
  std::vector<float> pieces;
  const int cuts[] = {0, 1, 777, 780, 1999, 2048, 3000};
  for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
    const std::vector<float> piece =
        rig.Step({{.stream = 1, .begin = cuts[i], .end = cuts[i + 1]}});
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_TRUE(BitwiseEqual(pieces, whole, rig.row_width()));
}

// Other head sizes and groups of every kind that models have.
TEST_P(AttentionTest, EveryShapeOfHeadsGivesTheReferencesBits) {
  for (const auto& [q_heads, kv_heads, head_dim] :
       {std::tuple(4, 2, 64), std::tuple(14, 2, 64), std::tuple(5, 1, 128), std::tuple(8, 8, 128),
        std::tuple(16, 1, 128)}) {
    AttentionRig rig({.path = GetParam(),
                      .q_heads = q_heads,
                      .kv_heads = kv_heads,
                      .head_dim = head_dim,
                      .positions = 1200,
                      .shuffle = 3});
    const std::vector<Chunk> step = {{.slot = 0, .stream = 1, .begin = 1100, .end = 1102},
                                     {.slot = 1, .stream = 2, .begin = 500, .end = 650}};
    EXPECT_TRUE(BitwiseEqual(rig.Step(step), rig.Step(step, {.reference = true}), rig.row_width()))
        << q_heads << "/" << kv_heads << " heads of " << head_dim;
  }
}

// A few rows and keys in several splits, so that tools that watch every access come to an end.
TEST_P(AttentionTest, SmallStepsOfEveryKindGiveTheReferencesBits) {
  for (const int head_dim : {64, 128}) {
    for (const int kv_block : {64, 128}) {
      AttentionRig rig({.path = GetParam(),
                        .q_heads = 6,
                        .kv_heads = 2,
                        .head_dim = head_dim,
                        .kv_block = kv_block,
                        .split_kv_size = kv_block,
                        .positions = 300,
                        .rows = 64,
                        .shuffle = 5});
      const std::vector<Chunk> step = {{.slot = 0, .stream = 1, .begin = 298, .end = 299},
                                       {.slot = 1, .stream = 2, .begin = 140, .end = 167},
                                       {.slot = 2, .stream = 3, .begin = 127, .end = 130},
                                       {.slot = 3, .stream = 4, .begin = 0, .end = 1}};
      const std::vector<float> reference = rig.Step(step, {.reference = true}, 3);
      // On one multiprocessor, CTAs come back for more units.
      for (const auto& [rows, multiprocessors] : {std::pair(64, 132), std::pair(128, 1)}) {
        const RigRun run{.schedule = {.prefill_rows = rows, .multiprocessors = multiprocessors}};
        EXPECT_TRUE(BitwiseEqual(rig.Step(step, run, 3), reference, rig.row_width()))
            << "heads of " << head_dim << ", blocks of " << kv_block << ", " << rows << " rows";
      }
    }
  }
}

TEST_P(AttentionTest, ARowAloneEqualsItselfAtEveryPlaceOfABatch) {
  constexpr int kBatchMax = 256;
  AttentionRig rig(
      {.path = GetParam(), .q_heads = 8, .kv_heads = 2, .positions = 700, .sequences = kBatchMax});
  const Chunk row{.slot = 5, .stream = 1, .begin = 600, .end = 601};
  const std::vector<float> alone = rig.Step({row});
  ASSERT_TRUE(AllFinite(alone));
  for (const int batch : {2, 3, 8, 17, 33, 64, 127, 256}) {
    const size_t place = static_cast<size_t>(batch) * 2 / 3;
    std::vector<Chunk> step;
    for (int i = 0; i < batch; ++i) {
      const int position = i * 37 % 699;
      const float fills[] = {0, 0, 3e38f, std::numeric_limits<float>::quiet_NaN()};
      // Slots are a rotation, so that no two rows share one.
      step.push_back({.slot = (i + 6) % kBatchMax,
                      .stream = 2,
                      .begin = position,
                      .end = position + 1,
                      .fill = fills[i % 4]});
    }
    step[place] = row;
    // The one whose slot was taken moves to the slot that became free.
    for (size_t i = 0; i < step.size(); ++i) {
      if (i != place && step[i].slot == row.slot)
        step[i].slot = (static_cast<int>(place) + 6) % kBatchMax;
    }
    EXPECT_TRUE(BitwiseEqual(Row(rig.Step(step), place, rig.row_width()), alone))
        << "batch of " << batch;
  }
}

// At every second place of a batch, other sequences, hostile ones too, between them; then at the
// others.
TEST_P(AttentionTest, EveryBatchSizeAndPlaceGivesTheBitsOfTheRowAlone) {
  AttentionRig rig({.path = GetParam(),
                    .q_heads = 4,
                    .kv_heads = 1,
                    .head_dim = 64,
                    .kv_block = 64,
                    .split_kv_size = 128,
                    .positions = 256,
                    .sequences = 8192,
                    .rows = 8192});
  // Two splits, which are one unit of work or two by how many sequences there are.
  const Chunk row{.stream = 1, .begin = 229, .end = 230};
  const std::vector<float> alone = rig.Step({row});
  ASSERT_TRUE(AllFinite(alone));
  const float fills[] = {0, 0, 3e38f, std::numeric_limits<float>::quiet_NaN()};
  for (const size_t batch : testing::BatchSizes()) {
    for (const size_t start : {0, 1}) {
      std::vector<Chunk> step;
      for (size_t place = 0; place < batch; ++place) {
        // The row has the even slots, wherever it stands.
        const int slot = static_cast<int>(place ^ start);
        const int position = slot * 37 % 255;
        Chunk chunk = row;
        if (slot % 2 == 1) {
          chunk = {
              .stream = 2, .begin = position, .end = position + 1, .fill = fills[slot / 2 % 4]};
        }
        chunk.slot = slot;
        step.push_back(chunk);
      }
      const std::vector<float> y = rig.Step(step);
      for (size_t place = start; place < batch; place += 2) {
        ASSERT_TRUE(BitwiseEqual(Row(y, place, rig.row_width()), alone))
            << "at " << place << " of " << batch;
      }
    }
  }
}

// A row moves through the tiles of chunks of every size, as their last and inside them, behind
// hostile sequences.
TEST_P(AttentionTest, ARowOfEveryChunkHasTheBitsOfTheRowAlone) {
  constexpr int kPosition = 8100;
  AttentionRig rig({.path = GetParam(),
                    .q_heads = 4,
                    .kv_heads = 1,
                    .head_dim = 64,
                    .positions = 8192,
                    .sequences = 3,
                    .rows = 8192 + 128});
  const std::vector<float> alone =
      rig.Step({{.stream = 1, .begin = kPosition, .end = kPosition + 1}});
  ASSERT_TRUE(AllFinite(alone));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Chunk> hostile = {
      {.slot = 1, .stream = 2, .begin = 0, .end = 77, .fill = nan},
      {.slot = 2, .stream = 3, .begin = 640, .end = 641, .fill = 3e38f}};
  for (const int end : {kPosition + 1, 8192}) {
    for (const size_t size : testing::BatchSizes()) {
      const int begin = end - static_cast<int>(size);
      if (begin < 0 || begin > kPosition) continue;
      std::vector<Chunk> step = hostile;
      step.push_back({.slot = 0, .stream = 1, .begin = begin, .end = end});
      const size_t place = 78 + static_cast<size_t>(kPosition - begin);
      ASSERT_TRUE(BitwiseEqual(Row(rig.Step(step), place, rig.row_width()), alone))
          << "chunk [" << begin << ", " << end << ")";
    }
  }
}

TEST_P(AttentionTest, PrefillIsBlindToNeighboursAndPages) {
  std::vector<float> alone;
  for (const uint32_t shuffle : {0u, 11u, 40u}) {
    AttentionRig rig({.path = GetParam(), .positions = 1400, .shuffle = shuffle});
    const Chunk chunk{.slot = 2, .stream = 1, .begin = 1000, .end = 1333};
    const std::vector<float> y = rig.Step({chunk});
    if (alone.empty()) alone = y;
    EXPECT_TRUE(BitwiseEqual(y, alone, rig.row_width())) << "shuffle " << shuffle;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> crowded =
        rig.Step({{.slot = 0, .stream = 2, .begin = 0, .end = 77, .fill = nan},
                  {.slot = 1, .stream = 3, .begin = 640, .end = 641, .fill = 3e38f},
                  chunk});
    crowded.erase(crowded.begin(), crowded.begin() + static_cast<ptrdiff_t>(78 * rig.row_width()));
    EXPECT_TRUE(BitwiseEqual(crowded, alone, rig.row_width())) << "shuffle " << shuffle;
  }
}

TEST_P(AttentionTest, RepeatsBesideABusyStream) {
  AttentionRig rig({.path = GetParam()});
  const std::vector<Chunk> step = {{.slot = 0, .stream = 1, .begin = 2900, .end = 2901},
                                   {.slot = 1, .stream = 2, .begin = 900, .end = 1300}};
  const std::vector<float> expected = rig.Step(step);
  rig.Load(step, 0);
  testing::Must(cudaDeviceSynchronize());
  testing::RunBesideABusyStream(
      20, [&](cudaStream_t stream) { rig.Enqueue({}, stream); },
      [&](int run) {
        EXPECT_TRUE(BitwiseEqual(rig.Read(), expected, rig.row_width())) << "run " << run;
        rig.Load(step, 0);
        testing::Must(cudaDeviceSynchronize());
      });
}

TEST_P(AttentionTest, ACapturedGraphServesOtherContents) {
  AttentionRig rig({.path = GetParam()});
  const std::vector<Chunk> first = {{.slot = 0, .stream = 1, .begin = 100, .end = 400},
                                    {.slot = 1, .stream = 2, .begin = 50, .end = 51}};
  // As many rows and sequences, but the roles change.
  const std::vector<Chunk> second = {{.slot = 3, .stream = 3, .begin = 2000, .end = 2002},
                                     {.slot = 2, .stream = 4, .begin = 1001, .end = 1300}};
  const std::vector<float> expected = rig.Step(second);
  rig.Load(first, 0);
  testing::ReplayAfter([&](cudaStream_t stream) { rig.Enqueue({}, stream); },
                       [&] { rig.Load(second, 0); });
  EXPECT_TRUE(BitwiseEqual(rig.Read(), expected, rig.row_width()));
}

TEST_P(AttentionTest, RowsOfPaddingAreZero) {
  AttentionRig rig({.path = GetParam()});
  const std::vector<float> y = rig.Step({{.stream = 1, .begin = 9, .end = 10}}, {}, 3);
  const std::vector<float> padding(y.begin() + static_cast<ptrdiff_t>(rig.row_width()), y.end());
  EXPECT_TRUE(BitwiseEqual(padding, std::vector<float>(3 * rig.row_width(), 0.0f)));
}

// Exact attention of one row and head, and how far bf16 probabilities may lead from it.
struct Exact {
  std::vector<double> y;
  std::vector<double> tolerance;
};

Exact ExactAttention(const AttentionRig& rig, const Chunk& chunk, int position, int head) {
  const auto& options = rig.options();
  const size_t dim = static_cast<size_t>(options.head_dim);
  const size_t keys = static_cast<size_t>(position) + 1;
  const int kv_head = head / (options.q_heads / options.kv_heads);
  const std::vector<float> q = rig.Query(chunk, position, head);
  std::vector<double> s(keys);
  std::vector<double> magnitude(keys);  // Sum of |q k|, scaled like s.
  double max = -std::numeric_limits<double>::infinity();
  for (size_t j = 0; j < keys; ++j) {
    const std::vector<float> k = rig.Key(chunk, static_cast<int>(j), kv_head);
    for (size_t d = 0; d < dim; ++d) {
      const double product = static_cast<double>(q[d]) * static_cast<double>(k[d]);
      s[j] += product / std::sqrt(static_cast<double>(dim));
      magnitude[j] += std::abs(product) / std::sqrt(static_cast<double>(dim));
    }
    max = std::max(max, s[j]);
  }
  double sum = 0;
  for (size_t j = 0; j < keys; ++j) sum += std::exp(s[j] - max);
  Exact exact{std::vector<double>(dim), std::vector<double>(dim)};
  std::vector<std::vector<float>> values;
  for (size_t j = 0; j < keys; ++j) {
    values.push_back(rig.Value(chunk, static_cast<int>(j), kv_head));
    for (size_t d = 0; d < dim; ++d) {
      exact.y[d] += std::exp(s[j] - max) / sum * static_cast<double>(values[j][d]);
    }
  }
  constexpr double kBf16Roundoff = 0x1p-9;
  // Sums over all keys and their rescaling, in numerator and denominator.
  const double sums = 2 * testing::Gamma(2 * keys);
  for (size_t j = 0; j < keys; ++j) {
    // Of a probability: its rounding to bf16; the hardware's exp2 (2 units), its argument's
    // rounding, and the score's: 2 roundings for each product and sum of the tensor core.
    const double relative = kBf16Roundoff + 2 * testing::kUnitRoundoff +
                            testing::Gamma(3) * (std::abs(s[j]) + std::abs(max)) +
                            testing::Gamma(2 * dim) * magnitude[j];
    for (size_t d = 0; d < dim; ++d) {
      const double reach = std::abs(static_cast<double>(values[j][d])) + std::abs(exact.y[d]);
      exact.tolerance[d] += std::exp(s[j] - max) / sum * reach * (relative + sums);
    }
  }
  for (size_t d = 0; d < dim; ++d) exact.tolerance[d] += kBf16Roundoff * std::abs(exact.y[d]);
  return exact;
}

TEST_P(AttentionTest, IsCloseToDoubles) {
  AttentionRig rig({.path = GetParam()});
  const Chunk chunk{.stream = 1, .begin = 0, .end = 3000};
  const std::vector<float> y = rig.Step({chunk});
  for (const int position : kEdges) {
    for (const int head : {0, 13, 31}) {
      const Exact exact = ExactAttention(rig, chunk, position, head);
      for (size_t d = 0; d < exact.y.size(); ++d) {
        const size_t at = static_cast<size_t>(position) * rig.row_width() +
                          static_cast<size_t>(head) * exact.y.size() + d;
        ASSERT_NEAR(static_cast<double>(y[at]), exact.y[d], exact.tolerance[d])
            << "position " << position << ", head " << head << ", dim " << d;
      }
    }
  }
}

TEST_P(AttentionTest, RefusesShapesThatItDoesNotHave) {
  using kernels::cuda::AttentionCall;
  AttentionCall call{.args = {.shape = {.rows = 1, .sequences = 1, .blocks_max = 8},
                              .q_heads = 32,
                              .kv_heads = 8,
                              .head_dim = 96,
                              .split_kv_size = 512},
                     .pool = {.layers = 1, .kv_heads = 8, .head_dim = 96},
                     .limits = {.rows = 1,
                                .sequences = 1,
                                .splits_max = 1,
                                .q_heads = 32,
                                .kv_heads = 8,
                                .head_dim = 96}};
  EXPECT_EQ(kernels::cuda::Attention(call, nullptr), cudaErrorInvalidValue);
  call.args.head_dim = call.pool.head_dim = call.limits.head_dim = 128;
  call.args.split_kv_size = 500;
  EXPECT_EQ(kernels::cuda::PlanAttention(call, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace lockstep
