#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "services/worker/model/checkpoint.h"
#include "services/worker/model/model_config.h"

namespace lockstep::testing {

// The decoder in double precision, written as its formulas, for one sequence at once. It can also
// disturb the result of every operation by random errors of the size that fp32 arithmetic makes
// there, which shows how far rounding errors of that size move the logits (Monte Carlo arithmetic:
// Parker, 1997). The size of each error follows from what is rounded:
//   a sum of products    u * sqrt(sum of the squares of its partial sums), one rounding each
//   RMSNorm              u * sqrt(log2(n) / 4 + 3) common to the row, u * sqrt(2) each element
//   rotary embedding     2 u of the result: table, two products, one sum. Angles are fp32 by
//                        definition, so they carry no error
//   exp in attention     u * (2 + |argument|), relative
//   attention output     as a sum of products, and u * sqrt(2 * blocks + 1) of rescaling, relative
//   SwiGLU               u * sqrt(5), relative
//   residual, bias       u of the sum, relative
// with u = 2^-24; each is taken as a standard deviation, although most roundings err by less.
class ReferenceTransformer {
 public:
  ReferenceTransformer(const worker::ModelConfig& config, const worker::Checkpoint& checkpoint);

  // Logits [positions, vocabulary] of chosen positions. `noise` 0 disturbs nothing; any other value
  // is the stream of the errors.
  std::vector<double> Logits(std::span<const int32_t> ids, std::span<const int> positions,
                             uint32_t noise) const;

 private:
  class Pass;
  std::span<const double> Weight(const std::string& name) const;

  const worker::ModelConfig config_;
  std::map<std::string, std::vector<double>> weights_;
};

}  // namespace lockstep::testing
