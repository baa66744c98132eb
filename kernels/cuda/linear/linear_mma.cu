#include "kernels/cuda/linear/linear_mma.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "kernels/cuda/device/linear_mma.cuh"
#include "kernels/cuda/launch.h"

namespace lockstep::kernels::cuda {
namespace {

template <typename Tiling>
cudaError_t Launch(const LinearMmaCall& call, cudaStream_t stream) {
  const int row_tiles = (call.rows + Tiling::kRows - 1) / Tiling::kRows;
  const int output_tiles = (call.shape.outputs + Tiling::kOutputs - 1) / Tiling::kOutputs;
  const dim3 grid(static_cast<unsigned>(row_tiles * output_tiles),
                  static_cast<unsigned>(call.shape.segments));
  return LaunchInOrder(LinearMmaKernel<Tiling>, grid, dim3(Tiling::kThreads), Tiling::kSharedBytes,
                       stream, ProductParametersOf(call));
}

struct Entry {
  MmaTiling tiling;
  cudaError_t (*launch)(const LinearMmaCall& call, cudaStream_t stream);
};

template <int kRows, int kOutputs, int kRowWarps, int kOutputWarps, int kStages>
constexpr Entry EntryOf() {
  using Tiling = LinearMmaTiling<kRows, kOutputs, kRowWarps, kOutputWarps, kStages>;
  return {{kRows, kOutputs}, Launch<Tiling>};
}

// Certificates name tilings by their index here.
constexpr Entry kEntries[] = {
    // Decode: weights stream through, with as many bytes on their way as shared memory holds.
    EntryOf<8, 32, 1, 2, 8>(), EntryOf<16, 32, 1, 2, 8>(), EntryOf<32, 64, 1, 4, 6>(),
    EntryOf<64, 64, 2, 2, 5>(),
    // Prefill.
    EntryOf<128, 64, 2, 2, 4>(), EntryOf<128, 128, 2, 2, 3>()};

constexpr auto kTilings = [] {
  std::array<MmaTiling, std::size(kEntries)> tilings = {};
  for (size_t i = 0; i < tilings.size(); ++i) tilings[i] = kEntries[i].tiling;
  return tilings;
}();

}  // namespace

std::span<const MmaTiling> MmaTilings() { return kTilings; }

bool Fits(const MmaTiling& tiling, const LinearShape& shape, int rows) {
  if (!IsSupported(shape)) return false;
  const int row_tiles = (rows + tiling.rows - 1) / tiling.rows;
  // Empty places of a tile cost what full ones do; and narrow tiles are for few rows.
  if (row_tiles * tiling.rows > std::max(2 * rows, 8)) return false;
  return row_tiles <= 2 || tiling.rows == 128;
}

cudaError_t LinearByMma(const LinearMmaCall& call, cudaStream_t stream) {
  if (call.tiling < 0 || call.tiling >= static_cast<int>(std::size(kEntries)) || call.rows < 0 ||
      !IsSupported(call.shape)) {
    return cudaErrorInvalidValue;
  }
  return call.rows == 0 ? cudaSuccess : kEntries[call.tiling].launch(call, stream);
}

}  // namespace lockstep::kernels::cuda
