#include "kernels/cuda/runtime/staged_copy.h"

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/runtime/stream.h"
#include "tests/gpu/device_array.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/philox_data.h"

// What comes through the pinned buffers is compared byte by byte with the same memory copied
// plainly.
namespace lockstep::testing {
namespace {

using kernels::cuda::ByteRows;
using kernels::cuda::StagedCopy;

constexpr size_t kBuffer = StagedCopy::kBufferBytes;

std::vector<uint32_t> RandomWords(size_t bytes) {
  std::vector<uint32_t> words((bytes + 3) / 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = PhiloxWord(7, i);
  return words;
}

class StagedCopyTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto stream = kernels::cuda::CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
    auto copy = StagedCopy::Create(stream_.get());
    ASSERT_TRUE(copy.ok()) << copy.status();
    copy_ = *std::move(copy);
  }

  std::vector<uint8_t> Staged(const ByteRows& rows) {
    DeviceArray<uint8_t> target(rows.count * rows.width + 1);
    EXPECT_TRUE(copy_->Rows(target.data(), rows, "test").ok());
    Must(cudaStreamSynchronize(stream_.get()));
    std::vector<uint8_t> read = target.Read();
    EXPECT_EQ(read.back(), 0xFF) << "a byte behind the rows was written";
    read.pop_back();
    return read;
  }
  static std::vector<uint8_t> Plain(const ByteRows& rows) {
    DeviceArray<uint8_t> target(rows.count * rows.width);
    if (target.size() > 0) {
      Must(cudaMemcpy2D(target.data(), rows.width, rows.data, rows.stride, rows.width, rows.count,
                        cudaMemcpyHostToDevice));
    }
    return target.Read();
  }

  kernels::cuda::Stream stream_;
  std::unique_ptr<StagedCopy> copy_;
};

TEST_F(StagedCopyTest, GivesTheBytesOfAPlainCopyAtEverySizeAroundItsBuffers) {
  const std::vector<uint32_t> words = RandomWords(5 * kBuffer + 64);
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
  for (const size_t size : {size_t{0}, size_t{1}, kBuffer - 1, kBuffer, kBuffer + 1, 2 * kBuffer,
                            2 * kBuffer + 3, 5 * kBuffer + 7}) {
    // A file promises no alignment.
    const ByteRows rows = {.data = bytes + size % 5, .count = 1, .width = size, .stride = size};
    EXPECT_TRUE(Staged(rows) == Plain(rows)) << size << " bytes";
  }
}

TEST_F(StagedCopyTest, PacksRowsThatEndAnywhereInItsBuffers) {
  const std::vector<uint32_t> words = RandomWords(3 * kBuffer);
  struct Case {
    size_t count, width, stride;
  };
  // The columns of a rank; rows that no buffer holds; ones that a buffer holds a whole number of.
  for (const Case& c : {Case{1021, 12288, 24576}, Case{2, kBuffer + 12, kBuffer + 4096},
                        Case{4096, 4096, 8192}, Case{333, 2, 66}}) {
    const ByteRows rows = {
        .data = words.data(), .count = c.count, .width = c.width, .stride = c.stride};
    EXPECT_TRUE(Staged(rows) == Plain(rows)) << c.count << " rows of " << c.width;
  }
}

TEST_F(StagedCopyTest, MemoryMayChangeAsSoonAsACopyReturns) {
  std::vector<uint32_t> words = RandomWords(2 * kBuffer);
  const std::vector<uint32_t> before = words;
  DeviceArray<uint32_t> first(words.size());
  DeviceArray<uint32_t> second(words.size());
  const ByteRows rows = {
      .data = words.data(), .count = 1, .width = 2 * kBuffer, .stride = 2 * kBuffer};
  ASSERT_TRUE(copy_->Rows(first.data(), rows, "first").ok());
  std::memset(words.data(), 0x5A, 2 * kBuffer);
  ASSERT_TRUE(copy_->Rows(second.data(), rows, "second").ok());
  copy_.reset();  // Waits for the device.
  EXPECT_TRUE(first.Read() == before);
  EXPECT_TRUE(second.Read() == words);
}

TEST_F(StagedCopyTest, AnErrorNamesWhatWasCopied) {
  const std::vector<uint32_t> words = RandomWords(64);
  const absl::Status status = copy_->Rows(
      nullptr, {.data = words.data(), .count = 1, .width = 64, .stride = 64}, "model.norm.weight");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("model.norm.weight"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace lockstep::testing
