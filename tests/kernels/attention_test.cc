// Attention: exact bits against the order in plain code, accuracy against fp64, and one result for
// prefill, chunks, decode, any neighbours, any block table and any poisoned page.
#include "tests/kernels/attention_rig.h"

#include <cmath>

#include "tests/kernels/contract_reference.h"
#include "tests/kernels/kernel_test.h"

namespace lockstep::kernels {
namespace {

using testing::BitwiseEqual;
using testing::Gamma;
using testing::kUnitRoundoff;

using Rows = std::vector<std::vector<float>>;

// Part `head` of a qkv row.
std::vector<float> Head(const std::vector<float>& qkv, size_t row, size_t width, int head,
                        int dim) {
  const auto begin = qkv.begin() + static_cast<ptrdiff_t>(row * width) + head * dim;
  return {begin, begin + dim};
}

class AttentionTest : public KernelTest {
 protected:
  int length() const { return slow_target() ? 99 : 203; }
};

struct Geometry {
  int q_heads;
  int kv_heads;
  int head_dim;
  int split;
};

TEST_P(AttentionTest, FollowsTheCanonicalOrderInEveryBit) {
  for (const Geometry& g : {Geometry{4, 2, 64, 64}, Geometry{3, 3, 40, 32}, Geometry{5, 1, 16, 96},
                            Geometry{8, 1, 128, 512}}) {
    AttentionRig rig(kernels(), {.q_heads = g.q_heads,
                                 .kv_heads = g.kv_heads,
                                 .head_dim = g.head_dim,
                                 .split_kv_size = g.split});
    const auto y = rig.Step({{.stream = 1, .end = length()}});
    const size_t width = static_cast<size_t>((g.q_heads + 2 * g.kv_heads) * g.head_dim);
    for (int head = 0; head < g.q_heads; ++head) {
      const int kv_head = head / (g.q_heads / g.kv_heads);
      Rows keys, values;
      for (size_t row = 0; row < static_cast<size_t>(length()); ++row) {
        keys.push_back(Head(rig.prepared(), row, width, g.q_heads + kv_head, g.head_dim));
        values.push_back(
            Head(rig.prepared(), row, width, g.q_heads + g.kv_heads + kv_head, g.head_dim));
        const auto expected = reference::Attention(
            Head(rig.prepared(), row, width, head, g.head_dim), keys, values, g.split);
        const auto actual = Head(y, row, rig.row_width(), head, g.head_dim);
        ASSERT_TRUE(BitwiseEqual(actual, expected))
            << "row " << row << ", head " << head << " of " << g.q_heads << " x " << g.head_dim;
      }
    }
  }
}

TEST_P(AttentionTest, IsAsCloseToTheExactSoftmaxAsItsRoundingsAllow) {
  AttentionRig rig(kernels(), {.q_heads = 2, .kv_heads = 1});
  const auto y = rig.Step({{.stream = 2, .end = length()}});
  constexpr int kDim = 64;
  const double scale = 1 / std::sqrt(double{kDim});
  for (size_t row = 0; row < static_cast<size_t>(length()); ++row) {
    for (int head = 0; head < 2; ++head) {
      const auto q = Head(rig.prepared(), row, 4 * kDim, head, kDim);
      std::vector<double> score(row + 1);
      double max = -INFINITY;
      double score_error = 0;  // Largest absolute error of a scaled score.
      for (size_t j = 0; j <= row; ++j) {
        const auto k = Head(rig.prepared(), j, 4 * kDim, 2, kDim);
        double magnitude = 0;
        for (size_t d = 0; d < kDim; ++d) {
          score[j] += double{q[d]} * k[d] * scale;
          magnitude += std::abs(double{q[d]} * k[d]) * scale;
        }
        max = std::max(max, score[j]);
        // The chain of the dot product, the constant, and the two roundings of the exponent.
        score_error = std::max(score_error, Gamma(kDim + 6) * magnitude);
      }
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s - max);
      // A probability and the sum are off by the scores' errors and the polynomial's 2 ulp; then
      // come the chain, the rescaling of each block and split, and the division.
      const double relative =
          2 * (std::expm1(2 * score_error) + 4 * kUnitRoundoff) + Gamma(row + 40);
      for (size_t d = 0; d < kDim; ++d) {
        double exact = 0;
        double magnitude = 0;
        for (size_t j = 0; j <= row; ++j) {
          const double v = Head(rig.prepared(), j, 4 * kDim, 3, kDim)[d];
          exact += score[j] / sum * v;
          magnitude += score[j] / sum * std::abs(v);
        }
        ASSERT_NEAR(y[row * rig.row_width() + static_cast<size_t>(head * kDim) + d], exact,
                    relative * magnitude)
            << "row " << row << ", head " << head << ", dim " << d;
      }
    }
  }
}

TEST_P(AttentionTest, PrefillChunksAndDecodeGiveTheSameBits) {
  AttentionRig rig(kernels(), {});
  const auto whole = rig.Step({{.stream = 3, .end = length()}});
  const std::vector<std::vector<int>> cuts = {{1}, {31, 32, 33}, {64}, {65, 66, 97}};
  for (const auto& cut : cuts) {
    rig.Free(0);
    std::vector<float> joined;
    int begin = 0;
    for (size_t i = 0; i <= cut.size(); ++i) {
      const int end = i < cut.size() ? cut[i] : length();
      const auto part = rig.Step({{.stream = 3, .begin = begin, .end = end}});
      joined.insert(joined.end(), part.begin(), part.end());
      begin = end;
    }
    ASSERT_TRUE(BitwiseEqual(joined, whole, rig.row_width())) << "first cut " << cut[0];
  }
  rig.Free(0);
  for (int position = 0; position < length(); ++position) {
    const auto row = rig.Step({{.stream = 3, .begin = position, .end = position + 1}});
    ASSERT_TRUE(BitwiseEqual(
        row, {whole.data() + static_cast<size_t>(position) * rig.row_width(), rig.row_width()}))
        << "decode at " << position;
  }
}

TEST_P(AttentionTest, NeighboursOfEveryKindChangeNothing) {
  const int end = 70;
  AttentionRig alone(kernels(), {.sequences = 34});
  const auto expected = alone.Step({{.stream = 4, .end = end}});
  const std::span<const float> last(
      expected.data() + static_cast<size_t>(end - 1) * alone.row_width(), alone.row_width());
  AttentionRig rig(kernels(), {.sequences = 34});
  std::vector<Chunk> prompt = {{.slot = 33, .stream = 4, .end = end - 1}};
  rig.Step(prompt);
  for (int batch = 1; batch <= 33; batch += slow_target() ? 8 : 1) {
    for (int place = 0; place < batch; place += 1 + batch / 4) {
      std::vector<Chunk> chunks;
      for (int i = 0; i < batch; ++i) {
        const float fills[] = {0, 1e30f, NAN};
        chunks.push_back({.slot = i,
                          .stream = static_cast<uint32_t>(100 + i),
                          .end = 1 + (i * 7) % 40,
                          .fill = fills[i % 3]});
        if (i == place) chunks.back() = {.slot = 33, .stream = 4, .begin = end - 1, .end = end};
      }
      const auto y = rig.Step(chunks, batch % 3);
      size_t row = 0;
      for (int i = 0; i < place; ++i)
        row += static_cast<size_t>(chunks[static_cast<size_t>(i)].end);
      ASSERT_TRUE(BitwiseEqual({y.data() + row * rig.row_width(), rig.row_width()}, last))
          << "batch " << batch << ", place " << place;
    }
  }
}

TEST_P(AttentionTest, BlockTablesChangeNothing) {
  std::vector<float> first;
  for (const uint32_t shuffle : {1u, 2u, 3u}) {
    AttentionRig rig(kernels(), {.shuffle = shuffle});
    const auto y = rig.Step({{.slot = static_cast<int>(shuffle), .stream = 5, .end = 90}});
    if (first.empty()) first = y;
    ASSERT_TRUE(BitwiseEqual(y, first, rig.row_width())) << "shuffle " << shuffle;
  }
}

TEST_P(AttentionTest, PoisonBeyondTheLengthIsNeverSeen) {
  AttentionRig rig(kernels(), {});
  for (const int end : {1, 31, 32, 33, 63, 64, 65}) {
    rig.Free(0);
    for (const float value : rig.Step({{.stream = 6, .end = end}}))
      ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(AttentionTest, LaterNanOfTheSameSequenceDoesNotReachEarlierRows) {
  AttentionRig rig(kernels(), {});
  const auto clean = rig.Step({{.stream = 7, .end = 40}});
  rig.Step({{.stream = 7, .begin = 40, .end = 64, .fill = NAN}});
  const auto again = rig.Step({{.stream = 7, .end = 40}});
  EXPECT_TRUE(BitwiseEqual(again, clean, rig.row_width()));
}

TEST_P(AttentionTest, PaddingRowsAreZero) {
  AttentionRig rig(kernels(), {});
  const auto y = rig.Step({{.stream = 8, .end = 2}}, 3);
  for (size_t i = 2 * rig.row_width(); i < y.size(); ++i) ASSERT_EQ(y[i], 0);
}

INSTANTIATE_TEST_SUITE_P(Cpu, AttentionTest, ::testing::ValuesIn(AllConfigurations()), NameOf);

}  // namespace
}  // namespace lockstep::kernels
