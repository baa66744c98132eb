#include "common/metrics/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "prometheus/text_serializer.h"

namespace lockstep::metrics {
namespace {

bool IsName(const std::string& name) {
  return absl::StartsWith(name, "lockstep_") && std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

}  // namespace

prometheus::Family<prometheus::Counter>& Registry::CounterFamily(const std::string& name,
                                                                 const std::string& help) {
  Claim(name, help, /*is_counter=*/true);
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_);
}

prometheus::Family<prometheus::Gauge>& Registry::GaugeFamily(const std::string& name,
                                                             const std::string& help) {
  Claim(name, help, /*is_counter=*/false);
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_);
}

prometheus::Family<prometheus::Histogram>& Registry::HistogramFamily(const std::string& name,
                                                                     const std::string& help) {
  Claim(name, help, /*is_counter=*/false);
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_);
}

void Registry::BeforeText(std::function<void()> refresh) {
  base::MutexLock lock(&mutex_);
  refreshes_.push_back(std::move(refresh));
}

std::string Registry::ToText() const {
  std::vector<std::function<void()>> refreshes;
  {
    base::MutexLock lock(&mutex_);
    refreshes = refreshes_;
  }
  for (const auto& refresh : refreshes) refresh();
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

void Registry::Claim(const std::string& name, const std::string& help, bool is_counter) {
  LOCKSTEP_CHECK(IsName(name)) << name;
  LOCKSTEP_CHECK_EQ(absl::EndsWith(name, "_total"), is_counter) << name;
  LOCKSTEP_CHECK(!help.empty()) << name;
  base::MutexLock lock(&mutex_);
  LOCKSTEP_CHECK(names_.insert(name).second) << name << " is registered twice";
}

}  // namespace lockstep::metrics
