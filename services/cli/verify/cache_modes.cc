// Modes about the prefix cache: prefix, radix_cache.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "services/cli/verify/modes.h"
#include "services/cli/verify/proof.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kNewTokens = 8;
constexpr char kCuts[] = "lockstep_worker_prefill_cuts_total";
// Copies of a prompt for each worker, to have one cut.
constexpr int64_t kCopiesFirst = 4;
constexpr int64_t kCopiesLast = 64;

// The lengths of the feature table, and one less and one more than each kind of block and a split.
std::vector<int64_t> PrefixLengths(const Subject& subject) {
  const int64_t block = subject.block_tokens();
  const int64_t split = subject.split_tokens();
  std::set<int64_t> lengths = {1, 511, 2048, 4097};
  for (const int64_t border : {block, subject.key_block_tokens(), split}) {
    lengths.insert({border - 1, border, border + 1});
  }
  const int64_t longest =
      std::min(subject.info().context_tokens_max(), subject.kv_tokens()) - kNewTokens;
  std::vector<int64_t> usable;
  for (const int64_t length : lengths) {
    if (length >= 1 && length <= longest) usable.push_back(length);
  }
  return usable;
}

// A fixed order that mixes the prompts.
void Shuffle(std::vector<Job>* jobs) {
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < jobs->size(); ++i) order.push_back({base::Hash64("shuffle", i), i});
  std::sort(order.begin(), order.end());
  std::vector<Job> mixed;
  for (const auto& [hash, i] : order) mixed.push_back(std::move((*jobs)[i]));
  *jobs = std::move(mixed);
}

// Prompts that miss the cache and start together share the tokens of a step, so that some are cut
// though each fits a chunk. How many it takes hangs on the workers' chunk_tokens.
absl::Status CutSome(Subject* subject, const MetricsSnapshot& begun, Job longest, Proof* proof) {
  longest.request.set_disable_prefix_cache(true);
  for (int64_t copies = kCopiesFirst; copies <= kCopiesLast; copies *= 2) {
    LOCKSTEP_ASSIGN_OR_RETURN(const MetricsSnapshot now, subject->ReadMetrics());
    if (now.Growth(begun, kCuts) > 0) break;
    const int64_t workers = static_cast<int64_t>(subject->workers().size());
    const std::vector<Job> jobs = JobsInTurn(*subject, {longest}, workers * copies);
    LOCKSTEP_RETURN_IF_ERROR(proof->Run(jobs, jobs.size()));
  }
  return absl::OkStatus();
}

// Fills the KV of one worker with prompts that nobody asks for again.
absl::Status EvictAll(Subject* subject, size_t worker, int64_t* variation) {
  const int64_t tokens =
      std::min({int64_t{2000}, subject->info().context_tokens_max() - 1, subject->kv_tokens() / 2});
  for (int64_t filled = 0; filled < subject->kv_tokens() + tokens; filled += tokens) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                              subject->LongIds(tokens, ++*variation));
    v1::GenerateRequest request = RequestFor(ids, 1, 1);
    request.set_routing_key(subject->KeyOf(worker));
    LOCKSTEP_RETURN_IF_ERROR(subject->cluster()->Generate(request).status());
  }
  return absl::OkStatus();
}

// What radix_cache found of each state of the cache.
struct CacheCounts {
  int64_t cold = 0;
  int64_t warm = 0;
  int64_t evicted = 0;
};

// Runs `job` alone and returns how many of its prompt's tokens the cache had.
absl::StatusOr<int64_t> RunAlone(Subject* subject, const Job& job, Proof* proof) {
  const auto answer = subject->cluster()->Generate(job.request);
  LOCKSTEP_RETURN_IF_ERROR(proof->Add(job, answer));
  return answer->samples(0).usage().cached_tokens();
}

}  // namespace

absl::Status VerifyPrefix(Subject* subject, const VerifyOptions& options) {
  Proof proof("prefix", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  LOCKSTEP_ASSIGN_OR_RETURN(const MetricsSnapshot begun, subject->ReadMetrics());
  const std::vector<int64_t> lengths = PrefixLengths(*subject);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> longest,
                            subject->LongIds(lengths.back(), 2));
  LOCKSTEP_RETURN_IF_ERROR(subject->cluster()->FlushCache().status());
  const size_t workers = subject->workers().size();
  std::vector<Job> jobs;
  for (const int64_t length : lengths) {
    const std::vector<int64_t> ids(longest.begin(), longest.begin() + length);
    const v1::GenerateRequest request = RequestFor(ids, kNewTokens, 31);
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt,
                              proof.Expect(absl::StrCat("prefix of ", length, " tokens"), request));
    for (int64_t trial = 0; trial < options.trials; ++trial) {
      jobs.push_back({prompt, request});
      jobs.back().request.set_routing_key(subject->KeyOf(static_cast<size_t>(trial) % workers));
    }
  }
  const Job longest_job = jobs.back();
  Shuffle(&jobs);
  LOCKSTEP_RETURN_IF_ERROR(proof.Run(jobs, 24));
  LOCKSTEP_RETURN_IF_ERROR(CutSome(subject, begun, longest_job, &proof));
  proof.RequireBatchAbove(1);
  proof.RequireGrowth("tokens found in the prefix cache",
                      "lockstep_worker_prefix_hit_tokens_total");
  proof.RequireGrowth("prefill chunks that ended before their prompt", kCuts);
  return proof.End();
}

absl::Status VerifyRadixCache(Subject* subject, const VerifyOptions& options) {
  Proof proof("radix_cache", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  // Ends inside a block and inside a split.
  const int64_t tokens = 2 * subject->split_tokens() + subject->block_tokens() + 5;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, subject->LongIds(tokens, 3));
  const v1::GenerateRequest request = RequestFor(ids, 12, 41);
  LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt,
                            proof.Expect(absl::StrCat(tokens, " tokens, T=1"), request));
  CacheCounts counts;
  const size_t workers = subject->workers().size();
  int64_t variation = 1000;
  for (int64_t trial = 0; trial < options.trials; trial += 3) {
    const size_t worker = static_cast<size_t>(trial / 3) % workers;
    Job job{prompt, request};
    job.request.set_routing_key(subject->KeyOf(worker));
    LOCKSTEP_RETURN_IF_ERROR(subject->cluster()->FlushCache().status());
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t cold, RunAlone(subject, job, &proof));
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t warm, RunAlone(subject, job, &proof));
    counts.cold += cold == 0;
    counts.warm += warm > 0;
    // Filling the whole KV is dear, so it is done once for each worker.
    if (trial / 3 < static_cast<int64_t>(workers)) {
      LOCKSTEP_RETURN_IF_ERROR(EvictAll(subject, worker, &variation));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t again, RunAlone(subject, job, &proof));
    counts.evicted += again < warm;
  }
  proof.Require("samples with a cold cache", static_cast<double>(counts.cold));
  proof.Require("samples with a warm cache", static_cast<double>(counts.warm));
  proof.Require("samples after eviction", static_cast<double>(counts.evicted));
  proof.RequireGrowth("tokens found in the prefix cache",
                      "lockstep_worker_prefix_hit_tokens_total");
  return proof.End();
}

}  // namespace lockstep::cli
