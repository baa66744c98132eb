#include "services/worker/kv/prefix_index.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace lockstep::worker {

base::Digest128 HashBlock(const base::Digest128& parent, std::span<const int32_t> ids) {
  base::Hasher hasher;
  hasher.Number(parent.high).Number(parent.low).Array(ids);
  return hasher.Finish();
}

base::Digest128 HashScope(const PrefixScope& scope) {
  base::Hasher hasher;
  hasher.Bytes(scope.cache_namespace).Number(static_cast<uint64_t>(scope.weight_version.value()));
  return hasher.Finish();
}

PrefixIndex::PrefixIndex(Options options)
    : options_(std::move(options)), allocator_(options_.block_count), nodes_(options_.block_count) {
  LOCKSTEP_CHECK_GT(options_.block_tokens, 0);
}

std::optional<int32_t> PrefixIndex::Allocate() {
  if (allocator_.free_count() == 0 && !EvictOne()) return std::nullopt;
  return allocator_.Allocate();
}

int32_t PrefixIndex::Find(const base::Digest128& key, const PrefixScope& scope, int32_t parent,
                          std::span<const int32_t> ids) const {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return -1;
  const Node& node = nodes_[it->second];
  if (node.parent != parent || !std::ranges::equal(node.ids, ids)) return -1;
  // Deeper blocks have their scope from the first one, through the parents compared above.
  if (parent < 0 && !(*node.scope == scope)) return -1;
  return it->second;
}

std::vector<int32_t> PrefixIndex::Match(const PrefixScope& scope, std::span<const int32_t> ids,
                                        int64_t tokens_max) {
  const int64_t tokens = std::min<int64_t>(tokens_max, static_cast<int64_t>(ids.size()));
  std::vector<int32_t> blocks;
  base::Digest128 key = HashScope(scope);
  int32_t parent = -1;
  for (int64_t end = options_.block_tokens; end <= tokens; end += options_.block_tokens) {
    const auto block_ids = ids.subspan(end - options_.block_tokens, options_.block_tokens);
    key = options_.hash(key, block_ids);
    const int32_t block = Find(key, scope, parent, block_ids);
    if (block < 0) break;
    AddUser(block);
    blocks.push_back(block);
    parent = block;
  }
  return blocks;
}

int32_t PrefixIndex::Publish(const std::shared_ptr<const PrefixScope>& scope, int32_t parent,
                             std::span<const int32_t> ids, int32_t block) {
  LOCKSTEP_CHECK_EQ(static_cast<int32_t>(ids.size()), options_.block_tokens);
  LOCKSTEP_CHECK(!nodes_[block].indexed) << "block " << block << " is published twice";
  if (parent >= 0 && !nodes_[parent].indexed) return block;
  const base::Digest128 key =
      options_.hash(parent < 0 ? HashScope(*scope) : nodes_[parent].key, ids);
  if (const int32_t known = Find(key, *scope, parent, ids); known >= 0) {
    AddUser(known);
    allocator_.Release(block);
    return known;
  }
  if (!by_key_.try_emplace(key, block).second) return block;  // A collision: stays private.
  nodes_[block] = {.indexed = true,
                   .key = key,
                   .parent = parent,
                   .children = 0,
                   .scope = scope,
                   .ids = std::vector<int32_t>(ids.begin(), ids.end()),
                   .last_use = ++use_clock_};
  allocator_.AddReference(block);
  if (parent >= 0) ++nodes_[parent].children;
  return block;
}

void PrefixIndex::Release(std::span<const int32_t> blocks) {
  // From the end, so that of one chain the deepest block is the least recently used.
  for (size_t i = blocks.size(); i-- > 0;) {
    const int32_t block = blocks[i];
    allocator_.Release(block);
    if (nodes_[block].indexed && IsUnused(block)) BecomeUnused(block);
  }
}

int64_t PrefixIndex::Flush(const std::optional<std::string>& cache_namespace) {
  int64_t freed = 0;
  for (int32_t block = 0; block < allocator_.block_count(); ++block) {
    const Node& node = nodes_[block];
    if (!node.indexed) continue;
    if (cache_namespace.has_value() && node.scope->cache_namespace != *cache_namespace) continue;
    if (IsUnused(block)) {
      ++freed;
      --unused_count_;
      unused_leaves_.erase({node.last_use, block});
    }
    // Whole chains go, so no parent is left whose children would have to be counted.
    Forget(block);
  }
  return freed;
}

void PrefixIndex::AddUser(int32_t block) {
  Node& node = nodes_[block];
  if (IsUnused(block)) {
    --unused_count_;
    unused_leaves_.erase({node.last_use, block});
  }
  allocator_.AddReference(block);
}

void PrefixIndex::BecomeUnused(int32_t block) {
  Node& node = nodes_[block];
  node.last_use = ++use_clock_;
  ++unused_count_;
  if (node.children == 0) unused_leaves_.insert({node.last_use, block});
}

void PrefixIndex::Forget(int32_t block) {
  by_key_.erase(nodes_[block].key);
  nodes_[block] = Node{};
  allocator_.Release(block);
}

bool PrefixIndex::EvictOne() {
  if (unused_leaves_.empty()) return false;
  const int32_t block = unused_leaves_.begin()->second;
  unused_leaves_.erase(unused_leaves_.begin());
  --unused_count_;
  ++evictions_;
  const int32_t parent = nodes_[block].parent;
  Forget(block);
  if (parent >= 0 && --nodes_[parent].children == 0 && IsUnused(parent)) {
    unused_leaves_.insert({nodes_[parent].last_use, parent});
  }
  return true;
}

}  // namespace lockstep::worker
