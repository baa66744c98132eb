#include "common/metrics/exposer.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"

namespace lockstep::metrics {
namespace {

absl::Status CannotListen(const std::string& address, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot serve metrics on ", address, ": ", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const std::string& address,
                                                        const Registry& registry) {
  // prometheus-cpp reports a port that it cannot have by an exception; nothing else here throws.
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/2);
    const std::vector<int> ports = exposer->GetListeningPorts();
    if (ports.empty()) return CannotListen(address, "no port is open");
    exposer->RegisterCollectable(registry.collectable());
    return std::make_unique<Exposer>(Private{}, std::move(exposer), ports.front());
  } catch (const std::exception& error) {
    return CannotListen(address, absl::StrCat("the port is in use or the address is not one of "
                                              "this machine (",
                                              error.what(), ")"));
  }
}

Exposer::Exposer(Private, std::unique_ptr<prometheus::Exposer> exposer, int port)
    : exposer_(std::move(exposer)), port_(port) {}

Exposer::~Exposer() = default;

}  // namespace lockstep::metrics
