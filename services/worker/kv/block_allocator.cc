#include "services/worker/kv/block_allocator.h"

#include "common/base/check.h"

namespace lockstep::worker {

BlockAllocator::BlockAllocator(int32_t block_count) : references_(block_count, 0) {
  free_.reserve(block_count);
  for (int32_t block = block_count - 1; block >= 0; --block) free_.push_back(block);
}

std::optional<int32_t> BlockAllocator::Allocate() {
  if (free_.empty()) return std::nullopt;
  const int32_t block = free_.back();
  free_.pop_back();
  LOCKSTEP_CHECK_EQ(references_[block], 0);
  references_[block] = 1;
  return block;
}

void BlockAllocator::AddReference(int32_t block) {
  LOCKSTEP_CHECK_GT(references_[block], 0) << "block " << block << " is free";
  ++references_[block];
}

bool BlockAllocator::Release(int32_t block) {
  LOCKSTEP_CHECK_GT(references_[block], 0) << "block " << block << " is free";
  if (--references_[block] > 0) return false;
  free_.push_back(block);
  return true;
}

}  // namespace lockstep::worker
