#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "lockstep/v1/rollout.pb.h"
#include "services/cli/verify/subject.h"

namespace lockstep::cli {

// One request of a load, and the prompt whose bits its answer must have.
struct Job {
  size_t prompt = 0;
  v1::GenerateRequest request;
};

// Jobs, and how many of them run at a time.
struct Load {
  std::vector<Job> jobs;
  size_t at_once = 1;
};

// The proof of one mode: expected bits first, each from a run alone and without cache; then samples
// under load; then evidence that the load was what it claims to be. One thread.
//
//   Proof proof("single", &subject);
//   LOCKSTEP_RETURN_IF_ERROR(proof.Begin());
//   LOCKSTEP_ASSIGN_OR_RETURN(const size_t p1, proof.Expect("P1", request));
//   LOCKSTEP_RETURN_IF_ERROR(proof.Run(jobs, 64));
//   proof.RequireGrowth("cuts", "lockstep_worker_prefill_cuts_total");
//   return proof.End();
class Proof {
 public:
  Proof(std::string mode, Subject* subject) : mode_(std::move(mode)), subject_(subject) {}

  // Reads the counters that evidence is measured from.
  absl::Status Begin();
  // Adds a prompt: runs `request` alone with the prefix cache off. Returns its number.
  absl::StatusOr<size_t> Expect(const std::string& label, const v1::GenerateRequest& request);
  // Adds a prompt whose samples the caller compares himself, with AddSample().
  size_t AddPrompt(const std::string& label, const std::string& expected_bits);

  // Runs all jobs, `at_once` of them at a time, and compares their answers.
  absl::Status Run(const std::vector<Job>& jobs, size_t at_once);
  // Runs loads side by side.
  absl::Status Run(const std::vector<Load>& loads);
  // Compares one answer that the caller got.
  absl::Status Add(const Job& job, const absl::StatusOr<v1::GenerateResponse>& answer);
  void AddSample(size_t prompt, const std::string& bits, const std::string& worker,
                 const std::optional<std::string>& difference);

  // Samples need not end on all workers: the caller shows by other evidence that all took part.
  void AllowIdleWorkers() { idle_workers_allowed_ = true; }

  // Evidence: printed, and 0 makes the mode fail.
  void Require(const std::string& what, double count);
  // The same for the growth of a worker's counter since Begin().
  void RequireGrowth(const std::string& what, const std::string& counter);
  // Steps since Begin() that ran more than `sequences` sequences; a power of two.
  void RequireBatchAbove(int64_t sequences);

  int64_t preemptions() const { return preemptions_; }
  int64_t resumptions() const { return resumptions_; }

  // Prints one line for each prompt and one for each piece of evidence. FAILED_PRECONDITION names
  // what did not hold.
  absl::Status End();

 private:
  struct Prompt {
    std::string label;
    v1::Sample expected;
    std::map<std::string, int64_t> samples_by_bits;  // The expected bits are one of them.
    std::string expected_bits;
    // The same for the samples of each worker.
    std::map<std::string, std::map<std::string, int64_t>> samples_by_worker;
    int64_t samples = 0;
    std::string first_difference;
  };
  struct Growth {
    std::string what;
    std::string metric;
    std::optional<int64_t> batch_above;
  };

  void PrintPrompts();
  void PrintWorkers();
  void Record(absl::Duration took);

  const std::string mode_;
  Subject* const subject_;
  absl::Time begun_;
  MetricsSnapshot before_;
  std::vector<Prompt> prompts_;
  std::map<std::string, int64_t> samples_by_worker_;
  std::vector<std::pair<std::string, double>> evidence_;
  std::vector<Growth> growths_;
  std::vector<std::string> failures_;
  bool idle_workers_allowed_ = false;
  int64_t preemptions_ = 0;
  int64_t resumptions_ = 0;
};

// A request that draws `max_new_tokens` tokens from the model's own distribution, with a seed of
// its own and without stopping early.
v1::GenerateRequest RequestFor(const std::vector<int64_t>& ids, int64_t max_new_tokens,
                               uint64_t seed);

// Each of `kinds` once a trial; trials go to the workers in turn.
std::vector<Job> JobsInTurn(const Subject& subject, const std::vector<Job>& kinds, int64_t trials);

}  // namespace lockstep::cli
