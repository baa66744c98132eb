#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernel_path.h"
#include "kernels/cuda/linear/certificate.h"
#include "kernels/cuda/linear/linear_rung.h"
#include "kernels/cuda/runtime/event.h"
#include "kernels/cuda/runtime/stream.h"

namespace lockstep::kernels::cuda {

// Rows at which certification looks for rungs: dense where decode batches are, then a few per
// octave, since a launch between two of them pays for the padding.
std::vector<int> DefaultLadder(int rows_max);

struct CertifierOptions {
  std::vector<int> ladder;  // Ascending.
  size_t workspace_bytes = size_t{32} << 20;
  // A rung must beat the next one by this factor, or calls go there.
  double gain = 0.985;
  bool library = true;  // Whether the library's algorithms compete.
  // Whose own kernels do; nullopt: none.
  std::optional<KernelPath> own_kernels = KernelPath::kSm90;
  // Whether all else that the library offers competes too, whatever order it adds in: for normal
  // mode, which promises no bits. Nothing is refused then.
  bool any_order = false;
  // Changes a product before it is compared; for tests of what certification sees.
  std::function<cudaError_t(void* product, cudaStream_t stream)> disturb;
};

// Finds out, per shape and number of rows, which algorithms give the reference kernel's bits, on
// operands that show an order of additions, again beside a busy stream; times those, and only
// those. Uses the current device and much of its memory while it runs: call it before memory is
// given away. Not thread-safe.
class Certifier {
 public:
  // What was seen of one algorithm.
  struct Verdict {
    LinearRung::Choice choice;
    uint64_t differing = 0;  // Elements, over all comparisons.
    uint64_t compared = 0;
    // Of those that differ in nothing; cold weights, in a graph, with a small kernel ahead of each.
    double microseconds = 0;

    bool certified() const { return compared > 0 && differing == 0; }
  };

  // `handle` outlives the result.
  static absl::StatusOr<std::unique_ptr<Certifier>> Create(cublasLtHandle_t handle,
                                                           CertifierOptions options);
  ~Certifier();

  // Adds the ladder of a shape to the table, and what was refused on the way. FAILED_PRECONDITION
  // names the shape and rows for which nothing gives the right bits.
  absl::Status Certify(const LinearShape& shape, CertificateTable& table);

  // Verdicts on all algorithms that are offered at these rows; the fastest certified one first.
  absl::StatusOr<std::vector<Verdict>> Examine(const LinearShape& shape, int rows);

 private:
  struct ShapeData;

  Certifier(cublasLtHandle_t handle, CertifierOptions options);

  absl::Status Prepare(const LinearShape& shape);
  absl::Status KeepMemoryBusy(int rows);
  absl::Status Compare(const LinearRung& rung, int first_row, bool beside_busy_memory,
                       unsigned long long* differing);
  absl::Status CompareLayer(const LinearRung& rung, int first_row, bool beside_busy_memory,
                            unsigned long long* differing);
  absl::Status Check(const LinearRung& rung, unsigned long long* differing, uint64_t& compared);
  absl::StatusOr<std::vector<LinearRung::Choice>> LibraryChoicesAt(int rows) const;
  std::vector<LinearRung::Choice> OwnChoicesAt(int rows) const;
  absl::Status EnqueueAhead(cudaStream_t stream);
  absl::Status TimeCertified(int rows, std::vector<Verdict>& verdicts);
  absl::StatusOr<std::vector<KernelNode>> KernelsFor(const LinearRung& rung);

  cublasLtHandle_t handle_;
  CertifierOptions options_;
  Stream stream_;
  Stream busy_stream_;
  Event poisoned_;  // What a product must overwrite is as no product writes it.
  std::unique_ptr<ShapeData> data_;
};

// The table of `path` where it is of this environment, with ladders for all shapes: what is
// missing is certified and the file written again. An empty path keeps nothing.
struct CertificatesRequest {
  std::vector<LinearShape> shapes;
  CertifierOptions options;
  std::string path;
};
absl::StatusOr<CertificateTable> LoadOrCertify(cublasLtHandle_t handle,
                                               const CertificatesRequest& request);

}  // namespace lockstep::kernels::cuda
