#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/api/collective.h"
#include "kernels/api/kernel_set.h"

namespace lockstep::kernels::cuda {

struct CudaOptions {
  // File of the certificates of linear layers; what it lacks is certified and added. Empty: none is
  // kept, and every start certifies.
  std::string certificates_path;
  // Normal mode: linear layers and attention in whatever order is fastest; reduction_segments and
  // split_kv_size mean nothing. Its choices have a file of their own beside the certificates.
  bool normal = false;
  // Prepares the ops of normal mode beside those that serve, for shadows. On one rank, and not in
  // normal mode.
  bool shadows = false;
  // Linear layers are audited while they serve; not in normal mode, which has no reference. Off to
  // measure what it costs.
  bool audit = true;
  // The kernels that any supported GPU has, also where there are faster ones; the same bits.
  bool portable_kernels = false;
  // This rank's end of a group of CreatePeerGroup, which also says on which device; null: the only
  // rank, on the first device that the process sees.
  std::shared_ptr<Collective> collective;
};

// The CUDA backend on one device, which becomes the calling thread's: bf16 activations and KV, ops
// enqueued on one stream. UNAVAILABLE without a device, FAILED_PRECONDITION for one that the
// kernels are not written for, by name.
absl::StatusOr<std::unique_ptr<KernelSet>> CreateCudaKernelSet(const CudaOptions& options);

}  // namespace lockstep::kernels::cuda
