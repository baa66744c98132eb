#include "services/worker/model/rank_part.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace lockstep::worker {
namespace {

constexpr int64_t kVocabularyMultiple = 64;

absl::Status Refuse(int ranks, const std::string& reason) {
  return absl::InvalidArgumentError(absl::StrCat("tensor_parallel = ", ranks, ": ", reason));
}

}  // namespace

absl::Status CheckRanks(const ModelConfig& config, int reduction_segments, int ranks) {
  if (ranks < 1 || !std::has_single_bit(static_cast<unsigned>(ranks))) {
    return Refuse(ranks, "must be a power of two");
  }
  if (ranks > reduction_segments) {
    return Refuse(ranks, absl::StrCat("a rank owns whole segments, and reduction_segments is ",
                                      reduction_segments));
  }
  if (config.kv_heads % ranks != 0 && ranks % config.kv_heads != 0) {
    return Refuse(ranks, absl::StrCat("the ", config.kv_heads, " kv heads do not divide by it"));
  }
  if (config.vocabulary < kVocabularyMultiple * ranks) {
    return Refuse(ranks, absl::StrCat("a vocabulary of ", config.vocabulary, " is less than ",
                                      kVocabularyMultiple, " rows a rank"));
  }
  return absl::OkStatus();
}

ModelConfig PartOf(const ModelConfig& config, const RankPart& part) {
  ModelConfig own = config;
  own.q_heads = config.q_heads / part.ranks;
  own.kv_heads = std::max(1, config.kv_heads / part.ranks);
  own.ffn = config.ffn / part.ranks;
  return own;
}

Run RunOf(int64_t whole, const RankPart& part) {
  const int64_t begin = whole * part.rank / part.ranks;
  return {begin, begin + std::max<int64_t>(1, whole / part.ranks)};
}

Run VocabularyRun(int vocabulary, const RankPart& part) {
  const auto border = [&](int64_t rank) {
    if (rank == part.ranks) return int64_t{vocabulary};
    return vocabulary * rank / part.ranks / kVocabularyMultiple * kVocabularyMultiple;
  };
  return {border(part.rank), border(part.rank + 1)};
}

}  // namespace lockstep::worker
