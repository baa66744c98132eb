#pragma once

#include <cstddef>

namespace lockstep::kernels {

// A weight matrix [outputs, inputs] (checkpoint layout of torch.nn.Linear), packed by the backend
// that made it, with the reduction order over `inputs` that its uses obey.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual int outputs() const = 0;  // Columns of y.
  virtual int inputs() const = 0;
  virtual size_t bytes() const = 0;
};

// How a layer is summed, and which part of it one rank holds.
struct LinearLayout {
  int segments = 1;  // Of the inputs given here; they divide by it.
  // Row-parallel over ranks: every rank holds an equal run of the inputs, and T goes on over ranks,
  // before bias and residual are added.
  bool reduced = false;
  // Column-parallel, put together again: y has this many columns on every rank, of which the
  // outputs given here start at first_output. 0: y has only these.
  int gathered_outputs = 0;
  int first_output = 0;
};

// y[r, o] = T(p) [+ bias[o]] [+ y[r, o] before the call, when accumulate], each sum rounded, where
// p[s] adds x[r, i] * w[o, i] over the inputs i of segment s in ascending order.
// x: [rows, inputs], y: [rows, outputs], both in the backend's activation type except that
// `y` is fp32 when `output_f32`. Strides are in elements.
struct LinearArgs {
  const LinearWeight* weight = nullptr;
  int rows = 0;
  const void* x = nullptr;
  size_t x_stride = 0;
  void* y = nullptr;
  size_t y_stride = 0;
  bool accumulate = false;  // Residual connection: y = y + product.
  bool output_f32 = false;  // lm_head keeps fp32.
};

}  // namespace lockstep::kernels
