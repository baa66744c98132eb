#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/metrics/metric.h"

namespace lockstep::metrics {

// Metrics of one family that appear when they are first used, for values whose absence says
// something: what was never measured is not 0. Label values come from a bounded set all the same.
// Not thread-safe, but what it gives is. Example:
//   metrics::Sparse<metrics::Gauge> ratio(registry, "lockstep_worker_…", "…", {"phase", "batch"});
//   ratio.At({"decode", "64"}).Set(1.02);
template <typename Metric>
class Sparse {
 public:
  Sparse(Registry* registry, const std::string& name, const std::string& help,
         std::vector<std::string> labels)
      : family_(Metric::MakeFamily(registry, name, help)), labels_(std::move(labels)) {}

  // `values` in the order of the labels.
  Metric& At(const std::vector<std::string>& values) {
    LOCKSTEP_CHECK_EQ(values.size(), labels_.size());
    const auto found = metrics_.find(values);
    if (found != metrics_.end()) return found->second;
    prometheus::Labels labels;
    for (size_t i = 0; i < values.size(); ++i) labels.emplace(labels_[i], values[i]);
    return metrics_.emplace(values, Metric(family_, labels)).first->second;
  }
  // Null while it has never been used.
  const Metric* Find(const std::vector<std::string>& values) const {
    const auto found = metrics_.find(values);
    return found == metrics_.end() ? nullptr : &found->second;
  }

 private:
  typename Metric::Family& family_;
  const std::vector<std::string> labels_;
  std::map<std::vector<std::string>, Metric> metrics_;
};

}  // namespace lockstep::metrics
