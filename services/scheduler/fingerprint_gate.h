#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/scheduler/types.h"

namespace lockstep::scheduler {

// Keeps the one contract of the cluster and lets in only workers that have it, weights included.
// The first worker sets it. It may be replaced only when the caller says that no worker lives, and
// then sequences of the old contract must not go on under the new one. Not thread-safe.
class FingerprintGate {
 public:
  // `kept` is what the scheduler had before it was restarted.
  explicit FingerprintGate(std::optional<Contract> kept) : contract_(std::move(kept)) {}

  enum class Decision { kSame, kFirst, kReplaces };

  // FAILED_PRECONDITION names every field that differs, and both values.
  absl::Status Compare(const Contract& offered) const;
  // What taking `offered` would mean; the error of Compare() when it differs and may not replace.
  absl::StatusOr<Decision> Decide(const Contract& offered, bool may_replace) const;
  void Set(Contract contract) { contract_ = std::move(contract); }

  const std::optional<Contract>& contract() const { return contract_; }

 private:
  std::optional<Contract> contract_;
};

}  // namespace lockstep::scheduler
