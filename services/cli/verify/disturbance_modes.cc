// Modes that take something away from running sequences: preemption, failover.
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "services/cli/cluster/cluster_layout.h"
#include "services/cli/files.h"
#include "services/cli/verify/modes.h"
#include "services/cli/verify/proof.h"
#include "services/cli/wait_until.h"
#include "services/client/generate_batch.h"

namespace lockstep::cli {
namespace {

// preemption: a sequence grows by this much; what a scheduler promises at admission should be less.
constexpr int64_t kGrowthTokens = 160;
// Sequences that should fill one worker's KV when they start.
constexpr int64_t kSequencesToFill = 36;

constexpr absl::Duration kRunningTimeout = absl::Seconds(60);
constexpr absl::Duration kRestartTimeout = absl::Seconds(60);
// Trials from which on `failover` kills every worker once, not only the first.
constexpr int64_t kEveryWorkerTrials = 16;
constexpr int64_t kFailoverSamplesMin = 8;
constexpr size_t kPidBytesMax = 64;

absl::StatusOr<pid_t> PidOf(const std::string& run_dir, const std::string& worker) {
  constexpr char kWhy[] =
      "failover kills worker processes, so it needs the directory that lockstep up was given, or "
      "use --mode without failover";
  if (run_dir.empty()) return absl::InvalidArgumentError(absl::StrCat("--run_dir: ", kWhy));
  const std::string path = PidPath(run_dir, worker);
  const absl::StatusOr<std::string> text = ReadFile(path, kPidBytesMax);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--run_dir: ", text.status().message(), ": ", kWhy));
  }
  int pid = 0;
  if (!absl::SimpleAtoi(*text, &pid) || pid <= 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds no process id"));
  }
  return pid;
}

// Prompts with what is hard to continue elsewhere: characters of several tokens, a stop string that
// spans tokens, greedy and drawn samples.
absl::StatusOr<std::vector<Job>> FailoverPrompts(Subject* subject, Proof* proof) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto story, subject->Ids("Tell me a story:"));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto emoji, subject->Ids("Say it with emoji:"));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto count, subject->Ids("Count to 90:"));
  std::vector<std::pair<std::string, v1::GenerateRequest>> prompts = {
      {"story, T=1", RequestFor(story, 400, 61)},
      {"emoji, T=1, top 2 logprobs", RequestFor(emoji, 400, 62)},
      {"counting, greedy, penalties", RequestFor(count, 400, 63)}};
  if (subject->has_tokenizer()) {
    prompts[0].second.mutable_stop()->add_stop_strings("The end of the very long story");
  }
  prompts[1].second.mutable_logprobs()->set_top_count(2);
  prompts[2].second.mutable_sampling()->set_temperature(0);
  prompts[2].second.mutable_sampling()->set_frequency_penalty(0.05f);
  std::vector<Job> kinds;
  for (const auto& [label, request] : prompts) {
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t prompt, proof->Expect(label, request));
    kinds.push_back({prompt, request});
  }
  return kinds;
}

// Waits until `worker` runs some sequences and tokens have come. The others may be faster and done.
absl::Status WaitBusy(const Subject& subject, const MetricsSnapshot& before,
                      const std::string& worker, const client::GenerateBatch& batch,
                      size_t sequences) {
  bool busy = false;
  WaitUntil(
      [&] {
        const auto now = subject.ReadMetrics();
        busy = now.ok() && now->Growth(before, "lockstep_worker_generated_tokens_total") >= 64 &&
               now->Gauge(worker, "lockstep_worker_sequences_running") >= 2;
        return busy || batch.done_count() == sequences;
      },
      kRunningTimeout);
  if (busy) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(worker, " did not become busy before the load was over"));
}

// Waits until `worker` has registered with another incarnation than `old`.
absl::Status WaitRestarted(Subject* subject, const std::string& worker, uint64_t old) {
  const bool back = WaitUntil(
      [&] {
        if (!subject->Refresh().ok()) return false;
        for (const v1::WorkerInfo& info : subject->info().workers()) {
          if (info.worker_id() == worker) return info.incarnation() != old;
        }
        return false;
      },
      kRestartTimeout, absl::Milliseconds(100));
  if (back) return absl::OkStatus();
  return absl::DeadlineExceededError(worker + " did not come back; is it supervised?");
}

// Starts the load, kills one worker in the middle of it, takes the answers.
absl::Status KillUnderLoad(Subject* subject, const VerifyOptions& options, size_t victim,
                           const std::vector<Job>& jobs, Proof* proof) {
  const v1::WorkerInfo worker = subject->info().workers(static_cast<int>(victim));
  LOCKSTEP_ASSIGN_OR_RETURN(const pid_t pid, PidOf(options.run_dir, worker.worker_id()));
  LOCKSTEP_ASSIGN_OR_RETURN(const MetricsSnapshot before, subject->ReadMetrics());
  std::vector<v1::GenerateRequest> requests;
  for (const Job& job : jobs) requests.push_back(job.request);
  const auto batch = client::GenerateBatch::Start(*subject->cluster(), std::move(requests),
                                                  {.in_flight_max = jobs.size()});
  const absl::Status busy = WaitBusy(*subject, before, worker.worker_id(), *batch, jobs.size());
  if (busy.ok()) kill(pid, SIGKILL);
  const auto answers = batch->Wait();
  LOCKSTEP_RETURN_IF_ERROR(busy);
  for (size_t i = 0; i < jobs.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(proof->Add(jobs[i], answers[i]));
  }
  return WaitRestarted(subject, worker.worker_id(), worker.incarnation());
}

}  // namespace

absl::Status VerifyPreemption(Subject* subject, const VerifyOptions& options) {
  Proof proof("preemption", subject);
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  const int64_t tokens =
      std::clamp(subject->kv_tokens() / kSequencesToFill - 2 * subject->block_tokens(), int64_t{8},
                 subject->info().context_tokens_max() - kGrowthTokens);
  const int64_t workers = static_cast<int64_t>(subject->workers().size());
  const int64_t to_fill = workers * (subject->kv_tokens() / (tokens + subject->block_tokens()) + 1);
  std::vector<Job> kinds;
  for (int64_t variation = 0; variation < 2; ++variation) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                              subject->LongIds(tokens, 5 + variation));
    v1::GenerateRequest request = RequestFor(ids, kGrowthTokens, 71);
    // The model is sure of its examples: only a flat distribution shows that noise was another.
    const float temperature = variation == 0 ? 1 : 3;
    request.mutable_sampling()->set_temperature(temperature);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const size_t prompt,
        proof.Expect(absl::StrCat(tokens, " + ", kGrowthTokens, " tokens, T=", temperature),
                     request));
    // Samples that shared their prompt's KV would need far less of it.
    request.set_disable_prefix_cache(true);
    kinds.push_back({prompt, std::move(request)});
  }
  const int64_t count = std::max(options.trials, to_fill / 2 + 1);
  const std::vector<Job> jobs = JobsInTurn(*subject, kinds, count);
  LOCKSTEP_RETURN_IF_ERROR(proof.Run(jobs, jobs.size()));
  proof.RequireBatchAbove(1);
  proof.RequireGrowth("preemptions", "lockstep_worker_preemptions_total");
  proof.Require("preemptions that answers tell of", static_cast<double>(proof.preemptions()));
  return proof.End();
}

absl::Status CheckFailover(const Subject& subject, const VerifyOptions& options) {
  for (const std::string& worker : subject.workers()) {
    LOCKSTEP_RETURN_IF_ERROR(PidOf(options.run_dir, worker).status());
  }
  return absl::OkStatus();
}

absl::Status VerifyFailover(Subject* subject, const VerifyOptions& options) {
  Proof proof("failover", subject);
  if (subject->workers().size() < 2) {
    return absl::FailedPreconditionError("failover: needs two workers");
  }
  LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Job> kinds, FailoverPrompts(subject, &proof));
  const size_t kills = options.trials >= kEveryWorkerTrials ? subject->workers().size() : 1;
  const int64_t samples =
      std::max(options.trials / static_cast<int64_t>(kills), kFailoverSamplesMin);
  for (size_t victim = 0; victim < kills; ++victim) {
    const std::vector<Job> jobs = JobsInTurn(*subject, kinds, samples);
    LOCKSTEP_RETURN_IF_ERROR(KillUnderLoad(subject, options, victim, jobs, &proof));
  }
  // With one of two workers killed, all samples may end on the other.
  proof.AllowIdleWorkers();
  proof.Require("workers killed amid their sequences", static_cast<double>(kills));
  proof.Require("sequences that went on elsewhere", static_cast<double>(proof.resumptions()));
  proof.RequireGrowth("sequences started with tokens of another worker",
                      "lockstep_worker_resumptions_total");
  return proof.End();
}

}  // namespace lockstep::cli
