#include "kernels/order/tree.h"

#include <bit>
#include <vector>

namespace lockstep::kernels {

float TreeSum(std::span<const float> values) {
  if (values.empty()) return 0;
  std::vector<float> v(std::bit_ceil(values.size()), 0.0f);
  std::copy(values.begin(), values.end(), v.begin());
  for (size_t length = v.size(); length > 1; length /= 2) {
    for (size_t i = 0; i < length / 2; ++i) v[i] = v[2 * i] + v[2 * i + 1];
  }
  return v[0];
}

}  // namespace lockstep::kernels
