#include "services/worker/engine/sequence_kv.h"

#include <algorithm>
#include <optional>

#include "common/base/check.h"

namespace lockstep::worker {

int64_t SequenceKv::CountFor(int64_t tokens) const {
  return (tokens + index_->block_tokens() - 1) / index_->block_tokens();
}

int64_t SequenceKv::Match(std::span<const int32_t> ids, int64_t tokens_max) {
  LOCKSTEP_CHECK(!active());
  if (!shares_) return 0;
  blocks_ = index_->Match(*scope_, ids, tokens_max);
  published_ = static_cast<int64_t>(blocks_.size());
  return published_ * index_->block_tokens();
}

int64_t SequenceKv::Missing(int64_t tokens) const {
  return std::max<int64_t>(0, CountFor(tokens) - static_cast<int64_t>(blocks_.size()));
}

bool SequenceKv::Reserve(int64_t tokens) {
  while (Missing(tokens) > 0) {
    const std::optional<int32_t> block = index_->Allocate();
    if (!block.has_value()) return false;
    blocks_.push_back(*block);
  }
  return true;
}

void SequenceKv::Publish(std::span<const int32_t> ids, int64_t computed) {
  if (!shares_) return;
  const int64_t block_tokens = index_->block_tokens();
  for (; (published_ + 1) * block_tokens <= computed; ++published_) {
    const int32_t parent = published_ == 0 ? -1 : blocks_[published_ - 1];
    blocks_[published_] = index_->Publish(
        scope_, parent, ids.subspan(published_ * block_tokens, block_tokens), blocks_[published_]);
  }
}

void SequenceKv::Release() {
  index_->Release(blocks_);
  blocks_.clear();
  published_ = 0;
}

std::span<const int32_t> SequenceKv::BlocksOf(int64_t tokens) const {
  return std::span(blocks_).first(CountFor(tokens));
}

}  // namespace lockstep::worker
