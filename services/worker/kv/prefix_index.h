#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "services/worker/kv/block_allocator.h"

namespace lockstep::worker {

// What apart from the tokens decides whether KV may be shared.
struct PrefixScope {
  std::string cache_namespace;
  base::WeightVersion weight_version;
  friend bool operator==(const PrefixScope&, const PrefixScope&) = default;
};

// Key of a block in its chain. The first block's parent key is made of the scope alone.
using BlockHash =
    std::function<base::Digest128(const base::Digest128& parent, std::span<const int32_t> ids)>;
base::Digest128 HashBlock(const base::Digest128& parent, std::span<const int32_t> ids);
base::Digest128 HashScope(const PrefixScope& scope);

// Finished KV blocks by the tokens they hold: a radix tree whose nodes are whole blocks, found by
// the hash of their chain (parent, ids, scope) and then compared with the stored parent, ids and
// scope, so that a collision of hashes can cost a hit but never give foreign KV.
//
// The index holds one reference to each of its blocks; sequences hold theirs. A sequence that uses
// a block uses all blocks before it, so a block without users has no descendant with users, and
// evicting unused leaves, least recently used first, can free every unused block. All references of
// sequences go through this class, which thereby knows what can be evicted. Example:
//   std::vector<int32_t> blocks = index.Match(scope, ids, ids.size() - 1);
//   blocks.push_back(*index.Allocate());                      // compute it, then
//   blocks[1] = index.Publish(scope, blocks[0], ids_of_block_1, blocks[1]);
//   index.Release(blocks);
// Not thread-safe: the engine loop's thread owns it.
class PrefixIndex {
 public:
  struct Options {
    int32_t block_count = 0;
    int32_t block_tokens = 0;
    BlockHash hash = HashBlock;  // Tests give one that collides.
  };
  explicit PrefixIndex(Options options);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // A block with one reference, the caller's; evicts when none is free. nullopt: all are in use.
  std::optional<int32_t> Allocate();

  // The longest known chain of whole blocks that holds a prefix of ids[0, tokens_max). The caller
  // gets a reference to each block.
  std::vector<int32_t> Match(const PrefixScope& scope, std::span<const int32_t> ids,
                             int64_t tokens_max);

  // Makes a computed block known: `ids` are its tokens, `parent` is the block before it, -1 for the
  // first one; the caller holds references to both. Returns the block to use from now on. When
  // the same chain is known already this is the known block, and the caller's reference has moved
  // to it. A block whose parent is not in the index stays private.
  int32_t Publish(const std::shared_ptr<const PrefixScope>& scope, int32_t parent,
                  std::span<const int32_t> ids, int32_t block);

  // Gives the references of a sequence back; blocks in order of position.
  void Release(std::span<const int32_t> blocks);

  // Forgets every chain, or those of one namespace. Blocks in use stay with their users and are
  // free after the last Release. Returns the number of blocks that became free at once.
  int64_t Flush(const std::optional<std::string>& cache_namespace);

  // Blocks that Allocate can give now.
  int64_t available_count() const { return allocator_.free_count() + unused_count_; }
  int64_t block_count() const { return allocator_.block_count(); }
  int64_t indexed_count() const { return static_cast<int64_t>(by_key_.size()); }
  int32_t block_tokens() const { return options_.block_tokens; }
  int64_t evictions() const { return evictions_; }

 private:
  struct Node {
    bool indexed = false;
    base::Digest128 key;
    int32_t parent = -1;  // Block.
    int32_t children = 0;
    std::shared_ptr<const PrefixScope> scope;
    std::vector<int32_t> ids;
    uint64_t last_use = 0;
  };

  // The block that follows `parent` with these ids, -1 when unknown.
  int32_t Find(const base::Digest128& key, const PrefixScope& scope, int32_t parent,
               std::span<const int32_t> ids) const;
  bool IsUnused(int32_t block) const { return allocator_.references(block) == 1; }
  void AddUser(int32_t block);
  void BecomeUnused(int32_t block);
  void Forget(int32_t block);
  bool EvictOne();

  const Options options_;
  BlockAllocator allocator_;
  std::vector<Node> nodes_;  // By block.
  absl::flat_hash_map<base::Digest128, int32_t> by_key_;
  std::set<std::pair<uint64_t, int32_t>> unused_leaves_;  // (last use, block)
  int64_t unused_count_ = 0;                              // Indexed blocks without users.
  uint64_t use_clock_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace lockstep::worker
