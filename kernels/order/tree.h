#pragma once

#include <span>

namespace lockstep::kernels {

// T of the numerics contract, in plain code: zero-pad to a power of two, then repeat
// v = v[0::2] + v[1::2], each sum rounded to fp32. T of nothing is 0. Every aligned block of a
// power-of-two length is a subtree, so lanes, tiles and ranks may each reduce their own block.
// This is the reference; backends have fast versions with the same bits.
float TreeSum(std::span<const float> values);

}  // namespace lockstep::kernels
