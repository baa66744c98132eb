#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace lockstep::metrics {

// All metrics of one service. Passed on by constructors, never global, so that a test has its own
// and reads exact values. Outlives the handles of metric.h, which are made from it. Thread-safe.
//
// A wrong name, an empty help text or a name used twice is an error in our own code and ends the
// process: names are lockstep_<service>_<noun>_<unit>, counters end in _total.
class Registry {
 public:
  Registry() : registry_(std::make_shared<prometheus::Registry>()) {}

  prometheus::Family<prometheus::Counter>& CounterFamily(const std::string& name,
                                                         const std::string& help);
  prometheus::Family<prometheus::Gauge>& GaugeFamily(const std::string& name,
                                                     const std::string& help);
  prometheus::Family<prometheus::Histogram>& HistogramFamily(const std::string& name,
                                                             const std::string& help);

  // Called before each ToText(), to set what is only known when it is asked for. Any thread,
  // several at once.
  void BeforeText(std::function<void()> refresh);
  // Everything in Prometheus' text format.
  std::string ToText() const;

 private:
  void Claim(const std::string& name, const std::string& help, bool is_counter);

  const std::shared_ptr<prometheus::Registry> registry_;
  mutable base::Mutex mutex_;
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> refreshes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lockstep::metrics
