#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/sampling.h"
#include "kernels/cuda/kernel_path.h"
#include "kernels/cuda/kv_layout.h"

// The ops that look at each row by itself. As those of ops.h they only enqueue, a graph can capture
// them, and cudaErrorInvalidValue says that arguments break the shape contract: activations are
// bf16, 16-byte aligned, and widths and strides are multiples of kRowVector elements. All of them
// are placement-invariant: no row sees how many others there are.
namespace lockstep::kernels::cuda {

inline constexpr int kRowVector = 8;

// The table is bf16.
cudaError_t Embedding(const EmbeddingArgs& args, cudaStream_t stream);
cudaError_t GatherRows(const GatherRowsArgs& args, cudaStream_t stream);

// Widths up to 16384.
cudaError_t RmsNorm(const RmsNormArgs& args, cudaStream_t stream);
inline constexpr int kNormWidthMax = 16384;

// What a row-parallel linear layer left is added to the residual, which is then normalised, in one
// pass: residual = RNbf16(residual + u), y = RMSNorm(residual). u is `update`, bf16, when segments
// is 1, else RNbf16(T(partials) [+ bias]). The bits of the separate ops.
struct ResidualRmsNormArgs {
  RmsNormArgs norm;  // norm.x is not looked at.
  void* residual = nullptr;
  size_t residual_stride = 0;
  int segments = 1;                 // 1, 2, 4 or 8.
  const void* update = nullptr;     // [rows, width] bf16.
  const float* partials = nullptr;  // [segments][rows, width], `partial_stride` elements apart.
  size_t partial_stride = 0;
  const uint16_t* bias = nullptr;  // [width] bf16, or null. With several segments only.
};
cudaError_t ResidualRmsNorm(const ResidualRmsNormArgs& args, cudaStream_t stream);

// `args.kv` is not looked at: `pool` is that cache. Heads of 64 or 128. The table's values are
// rounded to bf16, as Hugging Face does. Of qkv only q is changed.
struct QkvPrepareCall {
  QkvPrepareArgs args;
  KvPool pool;
};
cudaError_t QkvPrepare(const QkvPrepareCall& call, cudaStream_t stream);

cudaError_t SwiGlu(const SwiGluArgs& args, cudaStream_t stream);

// How a row of logits is spread. No field reaches a bit: tests compare the choices.
struct VocabularySchedule {
  KernelPath path = KernelPath::kSm90;
  int cluster = 8;  // On kSm90: CTAs that hold a row, 1..16, in 200 KiB of shared memory each.
  // On kPortable: device memory for the rows that are looked at at once, VocabularyScratchBytes.
  // One launch after the other uses it.
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
};
// `rows` need not be all of a call's; twice as many as multiprocessors fill a GPU.
size_t VocabularyScratchBytes(int vocabulary, int rows);

// On kPortable a vocabulary has at most so many ids.
inline constexpr int kPortableVocabularyMax = 1 << 18;
// And so many on kSm90.
int VocabularyMax(const VocabularySchedule& schedule);
cudaError_t Logprobs(const LogprobArgs& args, const VocabularySchedule& schedule,
                     cudaStream_t stream);
cudaError_t CountDrawn(const CountDrawnArgs& args, cudaStream_t stream);
cudaError_t Sample(const SampleArgs& args, const VocabularySchedule& schedule, cudaStream_t stream);

// The sampler's noise alone: of ids [0, vocabulary) at a position, into noise [vocabulary].
struct NoiseArgs {
  uint64_t sub_seed = 0;
  uint32_t position = 0;
  int vocabulary = 0;
  float* noise = nullptr;
};
cudaError_t Noise(const NoiseArgs& args, cudaStream_t stream);

// The noise of single random words, and the two tests that let the sampler pass over a word: a
// bound not below its noise, and a limit not below the complement of any word with so much noise.
struct NoiseOfWordsArgs {
  const uint32_t* words = nullptr;
  int count = 0;
  float* noise = nullptr;
  float* bounds = nullptr;
  uint32_t* limits = nullptr;
};
cudaError_t NoiseOfWords(const NoiseOfWordsArgs& args, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
