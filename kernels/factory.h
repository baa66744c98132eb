#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/api/certification.h"
#include "kernels/api/collective.h"
#include "kernels/api/kernel_set.h"

namespace lockstep::kernels {

struct BackendOptions {
  std::string backend = "cpu";  // "cpu" or "cuda".
  int threads = 1;              // Of the CPU backend; 0 is one per core.
  // Of the CUDA backend: a file of certificates of linear layers; empty keeps none, and every start
  // certifies.
  std::string certificates_path;
  // This rank's end, when several share a model; null otherwise.
  std::shared_ptr<Collective> collective;
  // Normal mode: whatever is fastest, in whatever order it adds. The CPU backend has none.
  bool normal = false;
  // Prepares shadows in normal mode too, where the backend has it and one rank; see
  // KernelSet::shadows. Costs time at start, like normal mode.
  bool shadows = false;
  // The CUDA backend audits itself; off to measure what that costs.
  bool audit = true;
  // Of the CUDA backend: kernels that any supported GPU has, also where there are faster ones. The
  // same bits; `architecture` says so.
  bool portable_kernels = false;
};

// Makes the ops of one rank. FAILED_PRECONDITION when this binary was built without the backend,
// INVALID_ARGUMENT for an unknown one.
absl::StatusOr<std::unique_ptr<KernelSet>> CreateKernelSet(const BackendOptions& options);

// Where the ranks of one model on this backend meet. They wait `patience` for each other, or when
// that is 0 as long as suits the backend. INVALID_ARGUMENT unless `ranks` is a power of
// two and each has a device, FAILED_PRECONDITION when this binary was built without the backend.
absl::StatusOr<std::shared_ptr<CollectiveGroup>> CreateCollectiveGroup(
    const std::string& backend, int ranks, absl::Duration patience = absl::ZeroDuration());

// Tokens of a split of attention on this backend unless somebody wants others. INVALID_ARGUMENT for
// an unknown backend; needs no device.
absl::StatusOr<int> DefaultSplitKvSize(const std::string& backend);

// What the start of a worker with these layers would run: the certificates of
// `options.certificates_path`, which gets those that it lacks. FAILED_PRECONDITION when this binary
// has no such backend, or when nothing gives the right bits for a layer, by name. The CPU backend
// has one kernel for each op and an empty report.
absl::StatusOr<CertificationReport> Certify(const BackendOptions& options,
                                            std::span<const LinearLayer> layers);

}  // namespace lockstep::kernels
