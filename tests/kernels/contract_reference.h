#pragma once

#include <cstdint>
#include <vector>

// The arithmetic of kernels/README.md in plain scalar code, written from its text and not from the
// kernels, so that a bit on which both agree is the contract's bit.
namespace lockstep::kernels::reference {

float Exp2(float x);
float Exp(float x);
float Log(float x);
// -log(-log(u)) of one Philox word.
float Gumbel(uint32_t word);
// Noise of a vocabulary id at a position.
float NoiseOf(uint64_t sub_seed, int64_t position, int32_t id);

// e[i] = exp(z[i] - max), relative to the exact maximum.
std::vector<float> Exponentials(const std::vector<float>& z);
// log_softmax of every id.
std::vector<float> LogSoftmax(const std::vector<float>& z);
float Entropy(const std::vector<float>& z);
// RN(z / temperature), overflow clamped to the largest finite number.
std::vector<float> Scaled(const std::vector<float>& z, float temperature);

std::vector<float> RmsNorm(const std::vector<float>& x, const std::vector<float>& weight,
                           float epsilon);

// One row of attention: q [dim], keys and values [tokens][dim], all of them visible.
std::vector<float> Attention(const std::vector<float>& q,
                             const std::vector<std::vector<float>>& keys,
                             const std::vector<std::vector<float>>& values, int split_kv_size);

}  // namespace lockstep::kernels::reference
