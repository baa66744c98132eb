#include "services/worker/model/tensor_checks.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/worker/model/tensor_check.h"

namespace lockstep::worker {
namespace {

// Small enough that the bytes digested are still in cache from the check before.
constexpr size_t kPieceBytes = size_t{256} << 10;

}  // namespace

absl::StatusOr<base::Digest128> CheckAndDigest(const Checkpoint::Tensor& tensor,
                                               kernels::DType dtype) {
  base::Hasher hasher;
  hasher.Bytes(tensor.entry->name).Bytes(tensor.entry->dtype);
  hasher.Array(std::span<const int64_t>(tensor.entry->shape));
  const std::span<const std::byte> data = tensor.file->Data(*tensor.entry);
  for (size_t begin = 0; begin < data.size(); begin += kPieceBytes) {
    const auto piece = data.subspan(begin, std::min(kPieceBytes, data.size() - begin));
    const std::optional<int64_t> found = FindNonFinite(piece, dtype);
    if (found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor.file->name(), ": tensor \"", tensor.entry->name, "\": element ",
                       begin / SizeOf(dtype) + *found, " is NaN or infinite"));
    }
    hasher.Bytes({reinterpret_cast<const char*>(piece.data()), piece.size()});
  }
  return hasher.Finish();
}

TensorChecks::TensorChecks(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Serve(); });
  }
}

TensorChecks::~TensorChecks() {
  {
    base::MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TensorChecks::Begin(const Checkpoint::Tensor& tensor, kernels::DType dtype) {
  base::MutexLock lock(&mutex_);
  const auto [found, added] = checks_.try_emplace(tensor.entry);
  if (!added) return;
  found->second = std::make_unique<Check>();
  found->second->tensor = tensor;
  found->second->dtype = dtype;
  waiting_.push_back(found->second.get());
  changed_.NotifyAll();
}

absl::StatusOr<base::Digest128> TensorChecks::Take(const Checkpoint::Tensor& tensor,
                                                   kernels::DType dtype) {
  std::unique_ptr<Check> check;
  {
    base::MutexLock lock(&mutex_);
    const auto found = checks_.find(tensor.entry);
    if (found != checks_.end()) {
      // One that nobody has begun is done faster here than waited for.
      while (found->second->begun && !found->second->done) changed_.Wait(&mutex_);
      check = std::move(found->second);
      std::erase(waiting_, check.get());
      checks_.erase(found);
    }
  }
  if (check != nullptr && check->done) return std::move(check->result);
  return CheckAndDigest(tensor, dtype);
}

void TensorChecks::Serve() {
  while (true) {
    Check* check = nullptr;
    {
      base::MutexLock lock(&mutex_);
      while (waiting_.empty() && !ending_) changed_.Wait(&mutex_);
      if (ending_) return;
      check = waiting_.front();
      waiting_.pop_front();
      check->begun = true;
    }
    absl::StatusOr<base::Digest128> result = CheckAndDigest(check->tensor, check->dtype);
    base::MutexLock lock(&mutex_);
    check->result = std::move(result);
    check->done = true;
    changed_.NotifyAll();
  }
}

}  // namespace lockstep::worker
