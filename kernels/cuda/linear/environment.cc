#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/linear/lt_matmul.h"
#include "kernels/cuda/linear/own_kernels_digest.h"
#include "kernels/cuda/runtime/cuda_status.h"

namespace lockstep::kernels::cuda {
namespace {

// The file that a function of this process was loaded from.
absl::StatusOr<std::string> FileOf(const void* function) {
  Dl_info info = {};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) {
    return absl::NotFoundError("the file of the cuBLASLt library");
  }
  return std::string(info.dli_fname);
}

absl::StatusOr<std::string> DigestOfFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (file < 0 || fstat(file, &status) != 0) {
    if (file >= 0) close(file);
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  const size_t bytes = static_cast<size_t>(status.st_size);
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return absl::UnavailableError(absl::StrCat("cannot map ", path));
  const std::string digest =
      base::Hasher().Bytes({static_cast<const char*>(mapped), bytes}).Finish().ToString();
  munmap(mapped, bytes);
  return digest;
}

}  // namespace

absl::StatusOr<CertificateEnvironment> CurrentEnvironment() {
  int device = 0;
  LOCKSTEP_RETURN_IF_ERROR(StatusOfCuda(cudaGetDevice(&device), "current device"));
  cudaDeviceProp properties;
  LOCKSTEP_RETURN_IF_ERROR(
      StatusOfCuda(cudaGetDeviceProperties(&properties, device), "device properties"));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string path,
                            FileOf(reinterpret_cast<const void*>(&cublasLtMatmul)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string digest, DigestOfFile(path));
  return CertificateEnvironment{.gpu = properties.name,
                                .multiprocessors = properties.multiProcessorCount,
                                .library_version = cublasLtGetVersion(),
                                .library_digest = digest,
                                .own_kernels_digest = kOwnKernelsDigest};
}

}  // namespace lockstep::kernels::cuda
