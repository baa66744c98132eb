#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::worker {

// Reference counts of the blocks of one KV pool. A block belongs to everyone who holds a reference:
// sequences, and the prefix index. Not thread-safe: the engine loop's thread owns it.
class BlockAllocator {
 public:
  explicit BlockAllocator(int32_t block_count);

  // A free block with one reference, or nullopt when none is free. Which one it is depends on the
  // history of calls alone.
  std::optional<int32_t> Allocate();
  // Adds a reference to a block that has one.
  void AddReference(int32_t block);
  // Takes a reference away; true when it was the last one and the block is free again.
  bool Release(int32_t block);

  int32_t references(int32_t block) const { return references_[block]; }
  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
  int32_t block_count() const { return static_cast<int32_t>(references_.size()); }

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // Last in, first out: recently used memory is warm.
};

}  // namespace lockstep::worker
