#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/collective/nccl_group.h"
#include "kernels/cuda/runtime/stream.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/message_sizes.h"
#include "tests/support/philox_data.h"

// Sums that travel through NCCL have the bits of those that peers read. On as many devices as there
// are: NCCL takes each once.
namespace lockstep::testing {
namespace {

using kernels::CollectiveGroup;
using kernels::ColumnShare;
using kernels::cuda::NcclEnd;

constexpr size_t kElementsMax = size_t{8192} * 4096;

class NcclGroupTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    int count = 0;
    if (!IsSkipped()) Must(cudaGetDeviceCount(&count));
    if (count < 2) GTEST_SKIP() << "NCCL needs a device for each of two ranks";
  }
};

ColumnShare ShareOf(int rank) { return {.first_column = rank * 8, .columns = rank == 0 ? 8 : 132}; }

void OnRanks(CollectiveGroup* group,
             const std::function<void(NcclEnd*, cudaStream_t stream)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group->ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      Must(cudaSetDevice(rank));
      const auto stream = kernels::cuda::CreateStream().value();
      const auto end = group->End(rank);
      auto* const nccl = static_cast<NcclEnd*>(end.get());
      ASSERT_TRUE(nccl->Open(kElementsMax * sizeof(float), ShareOf(rank), stream.get()).ok());
      body(nccl, stream.get());
      Must(cudaStreamSynchronize(stream.get()));
      EXPECT_TRUE(nccl->status().ok()) << nccl->status();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclGroupTest, AllReduceIsTheTreeOverRanksForEverySize) {
  const TwoParts two(WideData(1, 1 << 20), WideData(2, 1 << 20));
  const auto group = kernels::cuda::CreateNcclGroup({0, 1}).value();
  OnRanks(group.get(),
          [&](NcclEnd* end, cudaStream_t stream) { ExpectSumsAtBorders(two, end, stream); });
}

TEST_F(NcclGroupTest, AllGatherPutsUnequalSharesSideBySide) {
  constexpr size_t kRows = 37;
  constexpr size_t kWidth = 140;
  const std::vector<float> expected = UniformData(3, kRows * kWidth);
  const auto group = kernels::cuda::CreateNcclGroup({0, 1}).value();
  OnRanks(group.get(), [&](NcclEnd* end, cudaStream_t stream) {
    ColumnShare share = ShareOf(end->rank());
    share.rows = kRows;
    std::vector<float> own;
    for (size_t row = 0; row < kRows; ++row) {
      for (int c = 0; c < share.columns; ++c) {
        own.push_back(expected[row * kWidth + static_cast<size_t>(share.first_column + c)]);
      }
    }
    const DeviceArray<float> x(own);
    const DeviceArray<float> y(expected.size());
    share.x = x.data();
    end->AllGather(share, y.data(), kWidth);
    Must(cudaStreamSynchronize(stream));
    EXPECT_EQ(y.Read(), expected) << end->rank();
  });
}

TEST_F(NcclGroupTest, AnAbandonedGroupLetsWaitingKernelsGo) {
  const auto group = kernels::cuda::CreateNcclGroup({0, 1}).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Must(cudaSetDevice(rank));
      const auto stream = kernels::cuda::CreateStream().value();
      const auto end = group->End(rank);
      auto* const nccl = static_cast<NcclEnd*>(end.get());
      ASSERT_TRUE(nccl->Open(4096, ShareOf(rank), stream.get()).ok());
      if (rank == 1) return group->Abandon(absl::InternalError("rank 1 is lost"));
      const DeviceArray<float> x(size_t{1024});
      nccl->AllReduce(x.data(), 1024, x.data());
      Must(cudaStreamSynchronize(stream.get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(group->status().message(), "rank 1 is lost");
}

}  // namespace
}  // namespace lockstep::testing
