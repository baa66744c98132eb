#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/row_ops.h"

namespace lockstep::testing {

// One op over rows, whatever its arguments are: what goes into a row and what comes out of it, as
// fp32.
class RowOp {
 public:
  virtual ~RowOp() = default;
  virtual std::string name() const = 0;
  virtual size_t in_width() const = 0;
  // So many of a row's inputs are bf16, the others fp32.
  virtual size_t bf16_width() const { return in_width(); }
  virtual size_t out_width() const = 0;

  // Sets the inputs of [rows, in_width] values, and poisons the outputs.
  virtual void Load(const std::vector<float>& in) = 0;
  virtual void Enqueue(cudaStream_t stream) = 0;
  virtual std::vector<float> Read() = 0;  // [rows, out_width]

  // A row's result in plain code.
  virtual std::vector<float> Expected(std::span<const float> in) const = 0;

  std::vector<float> Run(const std::vector<float>& in);
};

std::unique_ptr<RowOp> MakeRmsNormOp(int width);
// Partial sums of 2, 4 or 8 segments, or one update in bf16, fused with the norm. Outputs are the
// residual, then its norm.
std::unique_ptr<RowOp> MakeResidualNormOp(int width, int segments, bool bias);
std::unique_ptr<RowOp> MakeSwiGluOp(int width);

struct HeadShape {
  int q_heads = 4;
  int kv_heads = 2;
  int head_dim = 128;
  bool q_norm = true;
  bool k_norm = true;
};
// Every row is a sequence of its own, at one position. Outputs are q from its place, then k and v
// from the pool.
std::unique_ptr<RowOp> MakeQkvPrepareOp(const HeadShape& shape);

// bf16 silu of all 65,536 bf16 numbers, as SwiGlu has it.
std::vector<float> SiluOfEveryInput();

}  // namespace lockstep::testing
