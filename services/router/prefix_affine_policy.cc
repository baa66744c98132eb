#include "services/router/prefix_affine_policy.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "common/base/hash.h"

namespace lockstep::router {
namespace {

struct Scored {
  bool over_bound = false;
  uint64_t score = 0;
  size_t index = 0;  // Ascending by worker id: decides ties.
};

// Below the bound before above it; then by score; then by worker id.
bool Better(const Scored& a, const Scored& b) {
  if (a.over_bound != b.over_bound) return b.over_bound;
  if (a.score != b.score) return a.score > b.score;
  return a.index < b.index;
}

uint64_t Score(uint64_t key, uint64_t name_hash) {
  const std::array<uint64_t, 2> pair = {key, name_hash};
  return base::Hash64({reinterpret_cast<const char*>(pair.data()), sizeof(pair)});
}

}  // namespace

RouteChoice PrefixAffinePolicy::Rank(const RouteRequest& request,
                                     std::span<const WorkerLoad> workers) const {
  RouteChoice choice;
  if (workers.empty()) return choice;
  const int64_t worker_count = static_cast<int64_t>(workers.size());
  int64_t total = request.sequence_count;
  for (const WorkerLoad& worker : workers) total += worker.load;
  const int64_t share = 100 * worker_count;
  const int64_t bound =
      std::max((options_.load_bound_percent * total + share - 1) / share, request.sequence_count);
  std::vector<Scored> ranked;
  ranked.reserve(workers.size());
  uint64_t best_score = 0;
  size_t preferred = 0;
  for (size_t i = 0; i < workers.size(); ++i) {
    const uint64_t score = Score(request.affinity_key, workers[i].name_hash);
    ranked.push_back({workers[i].load + request.sequence_count > bound, score, i});
    if (score > best_score) {
      best_score = score;
      preferred = i;
    }
  }
  const size_t count =
      std::min(ranked.size(), static_cast<size_t>(std::max<int64_t>(options_.candidates_max, 1)));
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<ptrdiff_t>(count), ranked.end(),
                    Better);
  for (size_t i = 0; i < count; ++i) {
    choice.candidates.push_back(workers[ranked[i].index].worker);
  }
  if (worker_count > 1) {
    choice.reason = ranked[0].index == preferred ? RouteReason::kAffine : RouteReason::kOverflow;
  }
  return choice;
}

}  // namespace lockstep::router
