#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::kernels {

enum class DType : uint8_t { kF32, kBf16, kI32 };

inline constexpr size_t SizeOf(DType dtype) { return dtype == DType::kBf16 ? 2 : 4; }

inline constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

}  // namespace lockstep::kernels
