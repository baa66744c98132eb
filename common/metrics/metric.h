#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/metrics/registry.h"

// Typed handles on metrics. A service lists its metrics as members of one struct:
//
//   struct RouterMetrics {
//     explicit RouterMetrics(metrics::Registry* registry)
//         : resumptions(registry, "lockstep_router_resumptions_total", "Sequences moved …"),
//           ended(registry, "lockstep_router_sequences_total", "Sequences ended, by outcome.",
//                 "outcome", {"finished", "aborted", "failed"}) {}
//     metrics::Counter resumptions;
//     metrics::CounterBy<Outcome> ended;  // ended[Outcome::kAborted].Increment()
//   };
//
// All handles are thread-safe and cheap; they stay valid as long as the registry.
namespace lockstep::metrics {

// Work done; only goes up.
class Counter {
 public:
  using Family = prometheus::Family<prometheus::Counter>;
  Counter(Registry* registry, const std::string& name, const std::string& help)
      : Counter(registry->CounterFamily(name, help), {}) {}
  Counter(Family& family, const prometheus::Labels& labels) : counter_(&family.Add(labels)) {}
  static Family& MakeFamily(Registry* registry, const std::string& name, const std::string& help) {
    return registry->CounterFamily(name, help);
  }

  void Increment(double amount = 1) {
    LOCKSTEP_CHECK_GE(amount, 0.0);
    counter_->Increment(amount);
  }
  double value() const { return counter_->Value(); }

 private:
  prometheus::Counter* counter_;
};

// State now.
class Gauge {
 public:
  using Family = prometheus::Family<prometheus::Gauge>;
  Gauge(Registry* registry, const std::string& name, const std::string& help)
      : Gauge(registry->GaugeFamily(name, help), {}) {}
  Gauge(Family& family, const prometheus::Labels& labels) : gauge_(&family.Add(labels)) {}
  static Family& MakeFamily(Registry* registry, const std::string& name, const std::string& help) {
    return registry->GaugeFamily(name, help);
  }

  void Set(double value) { gauge_->Set(value); }
  // May be negative.
  void Add(double amount) { gauge_->Increment(amount); }
  double value() const { return gauge_->Value(); }

 private:
  prometheus::Gauge* gauge_;
};

// Distribution of durations (seconds) or sizes.
class Histogram {
 public:
  using Family = prometheus::Family<prometheus::Histogram>;
  // `bounds` are the buckets' upper ends, ascending; buckets.h has presets.
  Histogram(Registry* registry, const std::string& name, const std::string& help,
            const std::vector<double>& bounds)
      : Histogram(registry->HistogramFamily(name, help), {}, bounds) {}
  Histogram(Family& family, const prometheus::Labels& labels, const std::vector<double>& bounds)
      : histogram_(&family.Add(labels, bounds)) {}
  static Family& MakeFamily(Registry* registry, const std::string& name, const std::string& help) {
    return registry->HistogramFamily(name, help);
  }

  void Observe(double value) { histogram_->Observe(value); }
  // In seconds.
  void Observe(absl::Duration duration) { Observe(absl::ToDoubleSeconds(duration)); }
  uint64_t count() const { return histogram_->Collect().histogram.sample_count; }
  double sum() const { return histogram_->Collect().histogram.sample_sum; }

 private:
  prometheus::Histogram* histogram_;
};

// One metric per value of a closed enum, all present from the start. `label_values` stand in the
// order of the enumerators, which count from zero.
template <typename Metric, typename Enum>
class By {
 public:
  // `extra` is what the metric's constructor takes more: a histogram's bounds.
  template <typename... Extra>
  By(Registry* registry, const std::string& name, const std::string& help, const std::string& label,
     const std::vector<std::string>& label_values, Extra... extra) {
    auto& family = Metric::MakeFamily(registry, name, help);
    for (const std::string& value : label_values) {
      metrics_.emplace_back(family, prometheus::Labels{{label, value}}, extra...);
    }
  }
  Metric& operator[](Enum value) { return metrics_[Index(value)]; }
  const Metric& operator[](Enum value) const { return metrics_[Index(value)]; }

 private:
  size_t Index(Enum value) const {
    LOCKSTEP_CHECK_LT(static_cast<size_t>(value), metrics_.size());
    return static_cast<size_t>(value);
  }

  std::vector<Metric> metrics_;
};

template <typename Enum>
using CounterBy = By<Counter, Enum>;
template <typename Enum>
using GaugeBy = By<Gauge, Enum>;
template <typename Enum>
using HistogramBy = By<Histogram, Enum>;

}  // namespace lockstep::metrics
