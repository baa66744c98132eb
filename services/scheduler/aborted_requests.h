#pragma once

#include <cstddef>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/base/ids.h"

namespace lockstep::scheduler {

// Which aborts of request ids concern a sequence that comes back: one that had a ticket before the
// abort and was between two workers, or on its way to one. An abort has an epoch, and ends what
// entered the cluster in an older one; a request that comes later may have the same id. Since
// nothing else is ever ended by it, an abort may be remembered for long; bounded in time and
// number. Not thread-safe.
class AbortedRequests {
 public:
  struct Options {
    absl::Duration memory = absl::Minutes(10);
    size_t requests_max = 1 << 18;
    // Ids with grants of the current epoch that are told apart.
    size_t granted_max = 1 << 16;
    // A trainer aborts many requests in a row.
    absl::Duration quiet = absl::Seconds(1);
  };
  explicit AbortedRequests(Options options) : options_(options) {}

  // A sequence of the request got a ticket of the current epoch, or perhaps of an older one.
  void Granted(const base::RequestId& request);
  void EpochBegins();
  // Some sequence of these may have entered in the current epoch: an abort needs a new one, or it
  // could not be told from those that come later.
  bool EnteredNow(const absl::flat_hash_set<base::RequestId>& requests) const;

  // `epoch`: the first one of sequences that come later.
  void Add(const base::RequestId& request, base::Epoch epoch, absl::Time now);
  // Whether an abort of the request came after `entry_epoch`.
  bool Ends(const base::RequestId& request, base::Epoch entry_epoch) const;
  // Something was aborted a moment ago.
  bool Recent(absl::Time now) const { return now < last_ + options_.quiet; }
  void Expire(absl::Time now);

 private:
  struct Abort {
    base::Epoch epoch;
    absl::Time until;
  };

  const Options options_;
  absl::flat_hash_map<base::RequestId, Abort> aborts_;
  std::deque<std::pair<absl::Time, base::RequestId>> order_;  // Ascending by time.
  absl::Time last_ = absl::InfinitePast();
  absl::flat_hash_set<base::RequestId> granted_;
  // Of ids that are not in granted_ too: an earlier scheduler granted in this epoch, or they were
  // too many.
  bool granted_others_ = true;
};

}  // namespace lockstep::scheduler
