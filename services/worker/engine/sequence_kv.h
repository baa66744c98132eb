#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "services/worker/kv/prefix_index.h"

namespace lockstep::worker {

// The KV blocks of one sequence, in order of position. The first `published` ones are known to the
// prefix index. Gives every reference back through Release, which the owner must call.
class SequenceKv {
 public:
  // Without `shares` the sequence neither uses nor feeds the prefix index.
  SequenceKv(PrefixIndex* index, std::shared_ptr<const PrefixScope> scope, bool shares)
      : index_(index), scope_(std::move(scope)), shares_(shares) {}

  // Takes cached blocks that hold a prefix of ids[0, tokens_max); returns their number of tokens.
  int64_t Match(std::span<const int32_t> ids, int64_t tokens_max);
  // Takes free blocks until `tokens` positions have one. False when the pool is used up; what was
  // taken stays.
  bool Reserve(int64_t tokens);
  // Blocks that Reserve would take.
  int64_t Missing(int64_t tokens) const;
  // Makes the blocks known whose tokens are all computed.
  void Publish(std::span<const int32_t> ids, int64_t computed);
  void Release();

  bool shares() const { return shares_; }
  const PrefixScope& scope() const { return *scope_; }
  bool active() const { return !blocks_.empty(); }
  const std::vector<int32_t>& blocks() const { return blocks_; }
  // Blocks of the first `tokens` positions.
  std::span<const int32_t> BlocksOf(int64_t tokens) const;

 private:
  int64_t CountFor(int64_t tokens) const;

  PrefixIndex* const index_;
  const std::shared_ptr<const PrefixScope> scope_;
  const bool shares_;
  std::vector<int32_t> blocks_;
  int64_t published_ = 0;
};

}  // namespace lockstep::worker
