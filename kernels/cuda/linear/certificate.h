#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/kernel_node.h"
#include "kernels/cuda/linear/linear_shape.h"

namespace lockstep::kernels::cuda {

// What must be the same for a certificate to mean anything: another library, another GPU or other
// kernels of ours may follow another order under the same numbers.
struct CertificateEnvironment {
  std::string gpu;  // Name of the model.
  int multiprocessors = 0;
  size_t library_version = 0;      // cublasLtGetVersion().
  std::string library_digest;      // Of the library's file.
  std::string own_kernels_digest;  // Of our kernels' sources and their compiler.

  friend bool operator==(const CertificateEnvironment&, const CertificateEnvironment&) = default;
};

// Who computes a product: the library, our kernel for Hopper, or ours for any GPU since Ampere.
enum class LinearEngine { kCublasLt, kSm90, kMma };

// A library algorithm or one of our kernels, as people name it. For our own, `id` is the index of a
// tiling and `tile` the number of rows of its tile.
struct AlgorithmTraits {
  LinearEngine engine = LinearEngine::kCublasLt;
  int id = 0;
  int tile = 0;
  int stages = 0;
  int split_k = 0;
  int reduction_scheme = 0;
  int swizzle = 0;
  int custom = 0;
  int inner_shape = 0;
  int cluster_shape = 0;

  friend bool operator==(const AlgorithmTraits&, const AlgorithmTraits&) = default;
};

// The library's own description of an algorithm, opaque, valid for one version of it.
using OpaqueAlgorithm = std::array<uint64_t, 8>;

// The fastest of the algorithms that gave the reference kernel's bits for one shape and number of
// launched rows.
struct Certificate {
  LinearShape shape;
  int rows = 0;
  size_t workspace_bytes = 0;  // Of the library, at most what certification allowed.
  AlgorithmTraits traits;
  OpaqueAlgorithm algorithm = {};
  double microseconds = 0;          // As timed when it was chosen.
  int offered = 0;                  // Algorithms tried.
  std::vector<KernelNode> kernels;  // What a graph that captured the layer must hold for it.

  friend bool operator==(const Certificate&, const Certificate&) = default;
};

// An algorithm whose bits differed.
struct Refusal {
  LinearShape shape;
  int rows = 0;
  AlgorithmTraits traits;
  uint64_t differing = 0;  // Elements, of `compared`.
  uint64_t compared = 0;

  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// All certificates of one environment, and their file. A plain value.
class CertificateTable {
 public:
  explicit CertificateTable(CertificateEnvironment environment)
      : environment_(std::move(environment)) {}

  // INVALID_ARGUMENT names the line that is not what ToText writes; DATA_LOSS a text that was cut
  // or changed.
  static absl::StatusOr<CertificateTable> FromText(std::string_view text);
  std::string ToText() const;

  // NOT_FOUND when there is no such file; else as FromText.
  static absl::StatusOr<CertificateTable> Load(const std::string& path);
  // Replaces the file in one step. Of processes that save at once, the last one's stays.
  absl::Status Save(const std::string& path) const;

  const CertificateEnvironment& environment() const { return environment_; }
  const std::vector<Certificate>& certificates() const { return certificates_; }
  const std::vector<Refusal>& refusals() const { return refusals_; }
  // Certificates of a shape, by ascending rows: its ladder. Pointers live until the next Add.
  std::vector<const Certificate*> Ladder(const LinearShape& shape) const;

  void Add(Certificate certificate) { certificates_.push_back(std::move(certificate)); }
  void Add(Refusal refusal) { refusals_.push_back(std::move(refusal)); }
  // Forgets what is known of a shape.
  void Remove(const LinearShape& shape);

  friend bool operator==(const CertificateTable&, const CertificateTable&) = default;

 private:
  CertificateEnvironment environment_;
  std::vector<Certificate> certificates_;
  std::vector<Refusal> refusals_;
};

}  // namespace lockstep::kernels::cuda
