#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/draw.h"

namespace lockstep::kernels::cuda {

// Draws weights where they are used. Only enqueues.
cudaError_t Draw(const DrawArgs& args, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
