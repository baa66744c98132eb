#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/collective/peer_group.h"
#include "kernels/order/tree.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/message_sizes.h"
#include "tests/gpu/peer_ranks.h"
#include "tests/support/philox_data.h"

namespace lockstep::testing {
namespace {

using kernels::CollectiveGroup;
using kernels::cuda::PeerEnd;
using ::testing::HasSubstr;

// Unequal columns of a matrix, by rank.
constexpr int kColumns[] = {8, 64, 4, 132, 8, 8, 12, 16};
kernels::ColumnShare ShareOf(int rank) {
  kernels::ColumnShare share = {.columns = kColumns[rank]};
  for (int before = 0; before < rank; ++before) share.first_column += kColumns[before];
  return share;
}

void OnRanks(CollectiveGroup* group,
             const std::function<void(PeerEnd*, cudaStream_t stream)>& body) {
  OnPeers(group, {.share = ShareOf}, body);
}

std::vector<float> Part(int rank, size_t count) {
  return WideData(static_cast<uint32_t>(rank + 1), count);
}

class PeerGroupTest : public GpuTest {};

TEST_F(PeerGroupTest, AllReduceIsTheTreeOverRanksForEverySizeAndRepeatsItself) {
  constexpr size_t kAll = 1 << 20;
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<std::vector<float>> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(Part(rank, kAll));
    std::vector<float> expected(kAll);
    for (size_t i = 0; i < kAll; ++i) {
      std::vector<float> values;
      for (const std::vector<float>& part : parts) values.push_back(part[i]);
      expected[i] = kernels::TreeSum(values);
    }
    const auto group = PeersOf(ranks);
    OnRanks(group.get(), [&](PeerEnd* end, cudaStream_t stream) {
      const std::vector<float>& mine = parts[static_cast<size_t>(end->rank())];
      const kernels::Buffer x = DeviceBytes(kAll * sizeof(float));
      const kernels::Buffer y = DeviceBytes(kAll * sizeof(float));
      CopyToDevice(mine, x.as<float>());
      for (const size_t count : {size_t{4}, size_t{64}, size_t{4096}, size_t{4100}, kAll}) {
        for (int repeat = 0; repeat < 5; ++repeat) {
          Must(cudaMemsetAsync(y.as<void>(), 0xFF, kAll * sizeof(float), stream));
          end->AllReduce(x.as<float>(), count, y.as<float>());
          Must(cudaStreamSynchronize(stream));
          const std::vector<float> sums = CopyFromDevice(y.as<float>(), count);
          EXPECT_EQ(sums, std::vector<float>(expected.begin(),
                                             expected.begin() + static_cast<int64_t>(count)))
              << ranks << " ranks, " << count << " elements, rank " << end->rank();
        }
      }
    });
    EXPECT_TRUE(group->status().ok()) << group->status();
  }
}

// By an exchange, and where an inbox is too small for it in two meetings.
TEST_F(PeerGroupTest, AllReduceIsTheTreeForMessagesOfEveryNumberOfTokens) {
  constexpr size_t kAll = size_t{8192} * 4096;
  const TwoParts two(Part(0, 1 << 20), Part(1, 1 << 20));
  const auto group = PeersOf(2);
  OnPeers(group.get(), {.bytes = kAll * sizeof(float)},
          [&](PeerEnd* end, cudaStream_t stream) { ExpectSumsAtBorders(two, end, stream); });
  EXPECT_TRUE(group->status().ok()) << group->status();
}

// What an inbox holds where nothing came is a value that a sum might be, were it sent as it is.
TEST_F(PeerGroupTest, ANotANumberOfAnyBitsIsASumLikeOthers) {
  constexpr size_t kCount = 1024;
  const auto group = PeersOf(2);
  OnRanks(group.get(), [&](PeerEnd* end, cudaStream_t stream) {
    const DeviceArray<float> x(kCount);  // All bits set.
    const DeviceArray<float> y(std::vector<float>(kCount, 1));
    for (int repeat = 0; repeat < 4; ++repeat) {
      end->AllReduce(x.data(), kCount, y.data());
      Must(cudaStreamSynchronize(stream));
      for (const float sum : y.Read()) EXPECT_TRUE(std::isnan(sum));
    }
  });
  EXPECT_TRUE(group->status().ok()) << group->status();
}

TEST_F(PeerGroupTest, AllGatherPutsUnequalSharesSideBySide) {
  constexpr int kRows = 37;
  for (const int ranks : {2, 8}) {
    const auto group = PeersOf(ranks);
    const kernels::ColumnShare last = ShareOf(ranks - 1);
    const size_t width = static_cast<size_t>(last.first_column + last.columns);
    std::vector<float> expected(kRows * width);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<float>(i);
    OnRanks(group.get(), [&](PeerEnd* end, cudaStream_t stream) {
      kernels::ColumnShare share = ShareOf(end->rank());
      share.rows = kRows;
      std::vector<float> own;
      for (size_t row = 0; row < kRows; ++row) {
        for (int c = 0; c < share.columns; ++c) {
          own.push_back(expected[row * width + static_cast<size_t>(share.first_column + c)]);
        }
      }
      const kernels::Buffer x = DeviceBytes(own.size() * sizeof(float));
      const kernels::Buffer y = DeviceBytes(expected.size() * sizeof(float));
      CopyToDevice(own, x.as<float>());
      Must(cudaMemsetAsync(y.as<void>(), 0xFF, y.bytes(), stream));
      share.x = x.as<float>();
      end->AllGather(share, y.as<float>(), width);
      Must(cudaStreamSynchronize(stream));
      EXPECT_EQ(CopyFromDevice(y.as<float>(), expected.size()), expected) << end->rank();
    });
  }
}

TEST_F(PeerGroupTest, ARankThatStaysAwayIsNamedAndNobodyWaitsLonger) {
  const auto group = PeersOf(2, absl::Milliseconds(200));
  OnRanks(group.get(), [&](PeerEnd* end, cudaStream_t) {
    if (end->rank() == 1) return;
    EXPECT_TRUE(end->Meet().ok());
  });
  EXPECT_EQ(group->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(group->status().message()), HasSubstr("rank 1 of 2"));
}

TEST_F(PeerGroupTest, AnAbandonedGroupLetsWaitingKernelsGo) {
  const auto group = PeersOf(2, absl::Hours(1));
  OnRanks(group.get(), [&](PeerEnd* end, cudaStream_t) {
    if (end->rank() == 0) {
      EXPECT_TRUE(end->Meet().ok());
    } else {
      group->Abandon(absl::InternalError("rank 1 is lost"));
    }
  });
  EXPECT_THAT(std::string(group->status().message()), HasSubstr("rank 1 is lost"));
}

TEST_F(PeerGroupTest, RefusesDevicesThatAreNotThere) {
  EXPECT_THAT(
      std::string(kernels::cuda::CreatePeerGroup({0, 63}, absl::Seconds(60)).status().message()),
      HasSubstr("needs device 63"));
  EXPECT_THAT(
      std::string(kernels::cuda::CreatePeerGroup({0, 0, 0}, absl::Seconds(60)).status().message()),
      HasSubstr("ranks = 3"));
}

}  // namespace
}  // namespace lockstep::testing
