#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/collective/peer_group.h"
#include "kernels/cuda/row_ops.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/message_sizes.h"
#include "tests/gpu/peer_ranks.h"
#include "tests/support/philox_data.h"

// Sums of a row-parallel layer over ranks, with the residual and the norm behind it: the bits of
// ResidualRmsNorm over all segments on one device, by either way, for any number of rows.
namespace lockstep::testing {
namespace {

using kernels::cuda::PeerEnd;
using kernels::cuda::ShownRows;
using kernels::cuda::SumUse;

struct Shape {
  int ranks = 2;
  int parts = 1;
  int outputs = 4096;
};

constexpr int kDistinctRows = 520;  // More rows repeat them.
constexpr float kEpsilon = 1e-6f;

template <typename T>
std::vector<T> Repeated(const std::vector<T>& rows, int count, int width) {
  std::vector<T> repeated;
  for (int row = 0; row < count; row += kDistinctRows) {
    const int more = std::min(count - row, kDistinctRows);
    repeated.insert(repeated.end(), rows.begin(), rows.begin() + int64_t{more} * width);
  }
  return repeated;
}

// What all ranks hold, and what has to come of it.
struct Layer {
  explicit Layer(const Shape& shape)
      : shape(shape),
        residual(Bf16Data(WideData(99, Elements(), 3))),
        weight(UniformData(98, static_cast<size_t>(shape.outputs), 2)) {
    std::vector<float> all;
    for (int segment = 0; segment < shape.ranks * shape.parts; ++segment) {
      segments.push_back(WideData(static_cast<uint32_t>(segment + 1), Elements()));
      all.insert(all.end(), segments.back().begin(), segments.back().end());
    }
    const DeviceArray<float> partials(all);
    const DeviceArray<float> weights(weight);
    const DeviceArray<uint16_t> y(residual);
    const DeviceArray<uint16_t> norm(residual.size());
    const size_t stride = static_cast<size_t>(shape.outputs);
    Must(kernels::cuda::ResidualRmsNorm({.norm = {.weight = weights.data(),
                                                  .epsilon = kEpsilon,
                                                  .width = shape.outputs,
                                                  .rows = kDistinctRows,
                                                  .y = norm.data(),
                                                  .y_stride = stride},
                                         .residual = y.data(),
                                         .residual_stride = stride,
                                         .segments = shape.ranks * shape.parts,
                                         .partials = partials.data(),
                                         .partial_stride = Elements()},
                                        nullptr));
    Must(cudaDeviceSynchronize());
    added = y.Read();
    normed = norm.Read();
  }

  size_t Elements() const { return static_cast<size_t>(kDistinctRows) * shape.outputs; }

  Shape shape;
  std::vector<std::vector<float>> segments;
  std::vector<uint16_t> residual;
  std::vector<float> weight;
  std::vector<uint16_t> added;
  std::vector<uint16_t> normed;
};

using Way = absl::Status (PeerEnd::*)(const ShownRows& rows);

// One rank's memory for calls of at most `rows_max` rows.
class RankRows {
 public:
  RankRows(const Layer& layer, PeerEnd* end, int rows_max, cudaStream_t stream)
      : layer_(layer),
        end_(end),
        stream_(stream),
        stride_(static_cast<size_t>(rows_max) * layer.shape.outputs),
        weight_(layer.weight),
        y_(stride_),
        normed_(stride_) {}

  // With `norm`, or the sums and the residual alone.
  void Enqueue(Way way, int rows, bool norm) {
    const Shape& shape = layer_.shape;
    const size_t stride = static_cast<size_t>(shape.outputs);
    float* const shown = end_->BeginShow();
    for (int part = 0; part < shape.parts; ++part) {
      const int segment = end_->rank() * shape.parts + part;
      Copy(layer_.segments[static_cast<size_t>(segment)], rows,
           shown + static_cast<size_t>(part) * stride_);
    }
    Copy(layer_.residual, rows, y_.data());
    Must(cudaMemsetAsync(normed_.data(), 0xFF, normed_.size() * sizeof(uint16_t), stream_));
    SumUse use = {.rows = rows,
                  .outputs = shape.outputs,
                  .y = y_.data(),
                  .y_stride = stride,
                  .accumulate = true};
    if (norm) {
      use.norm_weight = weight_.data();
      use.norm_epsilon = kEpsilon;
      use.normed = normed_.data();
      use.normed_stride = stride;
    }
    const absl::Status status =
        (end_->*way)({.part_count = shape.parts, .part_stride = stride_, .use = use});
    EXPECT_TRUE(status.ok()) << status;
  }

  void Expect(int rows, bool norm) {
    Must(cudaStreamSynchronize(stream_));
    const int width = layer_.shape.outputs;
    const size_t count = static_cast<size_t>(rows) * width;
    const std::string where = absl::StrCat(rows, " rows, rank ", end_->rank());
    EXPECT_EQ(CopyFromDevice(y_.data(), count), Repeated(layer_.added, rows, width)) << where;
    if (!norm) return;
    EXPECT_EQ(CopyFromDevice(normed_.data(), count), Repeated(layer_.normed, rows, width)) << where;
  }

 private:
  template <typename T>
  void Copy(const std::vector<T>& rows_of_layer, int rows, T* to) {
    const std::vector<T> all = Repeated(rows_of_layer, rows, layer_.shape.outputs);
    Must(cudaMemcpyAsync(to, all.data(), all.size() * sizeof(T), cudaMemcpyHostToDevice, stream_));
    Must(cudaStreamSynchronize(stream_));
  }

  const Layer& layer_;
  PeerEnd* const end_;
  const cudaStream_t stream_;
  const size_t stride_;
  const DeviceArray<float> weight_;
  DeviceArray<uint16_t> y_;
  DeviceArray<uint16_t> normed_;
};

void ExpectRows(const Shape& shape, const std::vector<int>& row_counts,
                const std::vector<Way>& ways) {
  const Layer layer(shape);
  const int rows_max = *std::max_element(row_counts.begin(), row_counts.end());
  const auto group = PeersOf(shape.ranks);
  const size_t bytes = sizeof(float) * static_cast<size_t>(shape.parts) * shape.outputs * rows_max;
  OnPeers(group.get(), {.bytes = bytes}, [&](PeerEnd* end, cudaStream_t stream) {
    RankRows rank(layer, end, rows_max, stream);
    for (const int rows : row_counts) {
      for (const Way way : ways) {
        for (const bool norm : {false, true}) {
          rank.Enqueue(way, rows, norm);
          rank.Expect(rows, norm);
        }
      }
    }
  });
  EXPECT_TRUE(group->status().ok()) << group->status();
}

class SharedRowsTest : public GpuTest {};

TEST_F(SharedRowsTest, HaveTheBitsOfOneDeviceForEveryNumberOfRows) {
  ExpectRows({}, BorderTokens(), {&PeerEnd::AddShown, &PeerEnd::ScatterShown});
}

TEST_F(SharedRowsTest, HaveThemForOtherWidths) {
  for (const int outputs : {8, 64, 1024, 2560, 5120, 8192}) {
    ExpectRows({.outputs = outputs}, {1, 7, 33}, {&PeerEnd::AddShown, &PeerEnd::ScatterShown});
  }
}

// On fewer devices than ranks: few enough CTAs to run at once.
TEST_F(SharedRowsTest, HaveThemForEveryNumberOfRanksAndSegments) {
  for (const int ranks : {2, 4, 8}) {
    for (int parts = 1; parts * ranks <= 8; parts *= 2) {
      ExpectRows({.ranks = ranks, .parts = parts, .outputs = 1024}, {1, 2, 7, 65},
                 {&PeerEnd::ExchangeShown, &PeerEnd::ScatterShown});
    }
  }
}

// Both ways after each other, so that inboxes and buffers are used again and again, in a graph.
TEST_F(SharedRowsTest, RepeatThemselvesInAGraph) {
  const Layer layer({});
  const auto group = PeersOf(2);
  OnPeers(group.get(), {}, [&](PeerEnd* end, cudaStream_t stream) {
    constexpr int kRows = 17;
    RankRows rank(layer, end, kRows, stream);
    const DeviceArray<float> x(std::vector<float>(4096, 1.5f));
    const DeviceArray<float> y(size_t{4096});
    rank.Enqueue(&PeerEnd::AddShown, kRows, true);
    rank.Expect(kRows, true);
    rank.Enqueue(&PeerEnd::AddShown, kRows, true);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int turn = 0; turn < 10; ++turn) end->AllReduce(x.data(), 4096, y.data());
    Must(cudaStreamEndCapture(stream, &graph));
    Must(cudaGraphInstantiate(&exec, graph, 0));
    for (int replay = 0; replay < 100; ++replay) {
      Must(cudaGraphLaunch(exec, stream));
      if (replay % 10 != 0) continue;
      rank.Enqueue(&PeerEnd::AddShown, kRows, true);
      rank.Expect(kRows, true);
      EXPECT_EQ(y.Read(), std::vector<float>(4096, 3.0f));
    }
    Must(cudaStreamSynchronize(stream));
    Must(cudaGraphExecDestroy(exec));
    Must(cudaGraphDestroy(graph));
  });
  EXPECT_TRUE(group->status().ok()) << group->status();
}

TEST_F(SharedRowsTest, ARankThatSendsNothingIsNamedAndNobodyWaitsLonger) {
  const Layer layer({});
  for (const Way way : {&PeerEnd::ExchangeShown, &PeerEnd::ScatterShown}) {
    const auto group = PeersOf(2, absl::Milliseconds(200));
    OnPeers(group.get(), {}, [&](PeerEnd* end, cudaStream_t stream) {
      if (end->rank() == 1) return;
      RankRows rank(layer, end, 300, stream);
      for (int call = 0; call < 3; ++call) rank.Enqueue(way, 300, true);
      Must(cudaStreamSynchronize(stream));
    });
    EXPECT_EQ(group->status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_NE(group->status().message().find("rank 1 of 2"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::testing
