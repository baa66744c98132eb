#pragma once

#include <string_view>

namespace lockstep::worker {

// Model strings that name no directory.
//
// An engine whose answers come from a hash:
inline constexpr char kNullModel[] = "null:";
// Random weights in a known shape, random:SHAPE or random:SHAPE@SEED (random_model.h):
inline constexpr char kRandomModel[] = "random:";

inline bool NamesDirectory(std::string_view model) {
  return model != kNullModel && !model.starts_with(kRandomModel);
}

}  // namespace lockstep::worker
