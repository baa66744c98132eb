#include "services/worker/kv/block_allocator.h"

#include <set>

#include "gtest/gtest.h"

namespace lockstep::worker {
namespace {

TEST(BlockAllocatorTest, GivesEachBlockOnceAndThenNone) {
  BlockAllocator allocator(3);
  std::set<int32_t> blocks;
  for (int i = 0; i < 3; ++i) blocks.insert(*allocator.Allocate());
  EXPECT_EQ(blocks, (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(allocator.Allocate(), std::nullopt);
  EXPECT_EQ(allocator.free_count(), 0);
}

TEST(BlockAllocatorTest, FreesABlockWithItsLastReference) {
  BlockAllocator allocator(1);
  const int32_t block = *allocator.Allocate();
  allocator.AddReference(block);
  EXPECT_FALSE(allocator.Release(block));
  EXPECT_EQ(allocator.Allocate(), std::nullopt);
  EXPECT_TRUE(allocator.Release(block));
  EXPECT_EQ(allocator.Allocate(), block);
}

TEST(BlockAllocatorTest, SameCallsGiveSameBlocks) {
  BlockAllocator a(8);
  BlockAllocator b(8);
  for (BlockAllocator* allocator : {&a, &b}) {
    for (int i = 0; i < 5; ++i) allocator->Allocate();
    allocator->Release(1);
    allocator->Release(3);
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(a.Allocate(), b.Allocate());
}

TEST(BlockAllocatorDeathTest, ReleaseOfAFreeBlockEndsTheProcess) {
  BlockAllocator allocator(2);
  EXPECT_DEATH(allocator.Release(1), "is free");
}

}  // namespace
}  // namespace lockstep::worker
