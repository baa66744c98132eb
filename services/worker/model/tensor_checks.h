#pragma once

#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "common/base/mutex.h"
#include "kernels/api/dtype.h"
#include "services/worker/model/checkpoint.h"

namespace lockstep::worker {

// One pass over a tensor's bytes: its digest, or INVALID_ARGUMENT that names file and tensor where
// a value is NaN or infinite.
absl::StatusOr<base::Digest128> CheckAndDigest(const Checkpoint::Tensor& tensor,
                                               kernels::DType dtype);

// Checks tensors ahead of the one who takes them, on threads of its own: a file is read and
// digested much slower than a device takes its bytes. Tensors are begun in the order in which they
// were asked for. The checkpoint outlives this; one thread calls.
class TensorChecks {
 public:
  explicit TensorChecks(int threads);
  // Lets go of what was not begun, and waits for what was.
  ~TensorChecks();

  // Asks for a tensor; again does nothing.
  void Begin(const Checkpoint::Tensor& tensor, kernels::DType dtype);
  // What CheckAndDigest says of the tensor, whether it was asked for or not.
  absl::StatusOr<base::Digest128> Take(const Checkpoint::Tensor& tensor, kernels::DType dtype);

 private:
  struct Check {
    Checkpoint::Tensor tensor;
    kernels::DType dtype = kernels::DType::kF32;
    bool begun = false;
    bool done = false;
    absl::StatusOr<base::Digest128> result;
  };

  void Serve();

  base::Mutex mutex_;
  base::CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Until they are taken. A check that has begun stays where it is.
  std::map<const SafetensorsEntry*, std::unique_ptr<Check>> checks_ ABSL_GUARDED_BY(mutex_);
  std::deque<Check*> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::worker
