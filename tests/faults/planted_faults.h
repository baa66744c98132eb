#pragma once

#include "services/worker/worker_hooks.h"

// Workers that break the promise, one way each. Every fault is small on purpose: it changes no
// shape, raises no error and keeps the fingerprint, so that nothing but a comparison of bits shows
// it. Given to a worker as hooks; each worker gets its own.
namespace lockstep::faults {

// Attention splits the KV in another way when the step holds more than one sequence.
worker::WorkerHooks SplitByBatch();

// Linear layers whose inputs are cut into segments have twice as many of them in such a step.
worker::WorkerHooks SegmentsByBatch();

// A drawn row is scaled by a slightly other temperature while a neighbour in the step is greedy or
// cut by top-p.
worker::WorkerHooks SamplingBranchByNeighbour();

// A prefill that starts behind a cached prefix of at least two KV blocks reads another block of KV
// in place of the first. `split_kv_size` is the worker's, and tells a cached prefix from a chunk.
worker::WorkerHooks StalePrefixHit(int split_kv_size);

// Noise is keyed by the number of the step, not by the position of the token.
worker::WorkerHooks NoiseKeyedByStep();

// The first token that is drawn after a resumption or preemption has the noise of the next one.
// Knows a sample by its sub-seed: what it was first seen to draw is where it begins.
worker::WorkerHooks ResumeOffByOne();

// Logprobs of scored rows are one ulp below those of drawn rows.
worker::WorkerHooks LogprobKernelByPath();

}  // namespace lockstep::faults
