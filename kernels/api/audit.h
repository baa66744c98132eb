#pragma once

#include <cstdint>

namespace lockstep::kernels {

// What a backend's audit has looked at: rows that the reference kernel computed again, and those of
// them whose bits were others.
struct AuditCounts {
  uint64_t rows = 0;
  uint64_t mismatches = 0;
};

}  // namespace lockstep::kernels
