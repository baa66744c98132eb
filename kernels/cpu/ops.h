#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/linear.h"
#include "kernels/api/sampling.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"

// The ops of the CPU backend, one file each. Arguments were not checked by anyone else: a broken
// shape is a LOCKSTEP_CHECK here.
namespace lockstep::kernels::cpu {

struct OpContext {
  ThreadPool& pool;
  Scratch& scratch;
};

void Embedding(OpContext& context, const EmbeddingArgs& args);
void GatherRows(OpContext& context, const GatherRowsArgs& args);
void RmsNorm(OpContext& context, const RmsNormArgs& args);
void SwiGlu(OpContext& context, const SwiGluArgs& args);
void Linear(OpContext& context, const LinearArgs& args);
void QkvPrepare(OpContext& context, const QkvPrepareArgs& args);
void Attention(OpContext& context, const AttentionArgs& args);
void CountDrawn(const CountDrawnArgs& args);
void Sample(OpContext& context, const SampleArgs& args);
void Logprobs(OpContext& context, const LogprobArgs& args);

}  // namespace lockstep::kernels::cpu
