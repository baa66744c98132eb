#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "services/cli/verify/subject.h"

// One function for each mode of `lockstep verify`. Each prints what it found and fails unless every
// prompt had one output and the load was what the mode is about.
namespace lockstep::cli {

struct VerifyOptions {
  int64_t trials = 50;  // Samples of each prompt, at least.
  std::string run_dir;  // Where a local cluster keeps process ids; for failover only.
  // For long, as far as context and KV allow.
  int64_t long_prompt_tokens = 2000;
  int64_t long_new_tokens = 300;
};

// One prompt, alone and in batches of itself of many sizes.
absl::Status VerifySingle(Subject* subject, const VerifyOptions& options);
// A short, a middle and a long prompt in one batch.
absl::Status VerifyMixed(Subject* subject, const VerifyOptions& options);
// Prompts that are prefixes of each other, cut around KV blocks and splits.
absl::Status VerifyPrefix(Subject* subject, const VerifyOptions& options);
// A cold cache, a warm one, and one whose blocks were taken by others.
absl::Status VerifyRadixCache(Subject* subject, const VerifyOptions& options);
// Logprobs of scoring against those of generation.
absl::Status VerifyPrefillVsDecode(Subject* subject, const VerifyOptions& options);
// Every kind of sampling in one batch.
absl::Status VerifyNeighbours(Subject* subject, const VerifyOptions& options);
// More sequences than KV.
absl::Status VerifyPreemption(Subject* subject, const VerifyOptions& options);
// A prompt of many chunks and an answer of many splits, several of each at once.
absl::Status VerifyLong(Subject* subject, const VerifyOptions& options);
// Workers whose models are shared by different numbers of ranks.
absl::Status VerifyTp(Subject* subject, const VerifyOptions& options);
// Whether failover finds the processes that it would kill: INVALID_ARGUMENT names --run_dir.
absl::Status CheckFailover(const Subject& subject, const VerifyOptions& options);
// A worker killed in mid-stream.
absl::Status VerifyFailover(Subject* subject, const VerifyOptions& options);

}  // namespace lockstep::cli
