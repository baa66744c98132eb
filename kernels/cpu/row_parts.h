#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/cpu/thread_pool.h"

namespace lockstep::kernels::cpu {

// The rows of an op that treats each row by itself.
struct RowParts {
  int64_t rows = 0;
  int64_t width = 0;  // Elements a row.
  // What one thread does in about the time that waking another takes; no part is much smaller.
  int64_t elements_per_thread = 0;
};

// Runs body(begin, end) for contiguous parts of the rows, on the pool's threads. Which part a row
// is in shows in no result.
inline void ForRowParts(ThreadPool& pool, const RowParts& parts,
                        absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  const int64_t grain = 1 + parts.elements_per_thread / std::max<int64_t>(1, parts.width);
  pool.ParallelFor(parts.rows, grain, [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

}  // namespace lockstep::kernels::cpu
