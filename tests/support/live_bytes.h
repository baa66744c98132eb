#pragma once

#include <malloc.h>

#include <cstdint>

namespace lockstep::testing {

// Bytes that the whole process has allocated and not freed, by the allocator's own count. What a
// thread's cache of freed blocks holds counts too, so compare with some slack.
inline int64_t LiveBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace lockstep::testing
