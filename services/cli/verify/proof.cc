#include "services/cli/verify/proof.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "services/cli/sample_end.h"
#include "services/client/generate_batch.h"
#include "services/client/sample_bits.h"

namespace lockstep::cli {

absl::Status Proof::Begin() {
  std::printf("%s\n", mode_.c_str());
  std::fflush(stdout);
  begun_ = absl::Now();
  LOCKSTEP_ASSIGN_OR_RETURN(before_, subject_->ReadMetrics());
  return absl::OkStatus();
}

absl::StatusOr<size_t> Proof::Expect(const std::string& label, const v1::GenerateRequest& request) {
  v1::GenerateRequest quiet = request;
  quiet.set_disable_prefix_cache(true);
  LOCKSTEP_ASSIGN_OR_RETURN(v1::Sample sample, WholeSample(subject_->cluster()->Generate(quiet)));
  const size_t prompt = AddPrompt(label, client::BitsOf(sample));
  prompts_[prompt].expected = std::move(sample);
  return prompt;
}

size_t Proof::AddPrompt(const std::string& label, const std::string& expected_bits) {
  Prompt prompt;
  prompt.label = label;
  prompt.expected_bits = expected_bits;
  prompt.samples_by_bits[expected_bits] = 0;
  prompts_.push_back(std::move(prompt));
  return prompts_.size() - 1;
}

absl::Status Proof::Run(const std::vector<Job>& jobs, size_t at_once) {
  return Run({{.jobs = jobs, .at_once = at_once}});
}

absl::Status Proof::Run(const std::vector<Load>& loads) {
  std::vector<std::shared_ptr<client::GenerateBatch>> batches;
  for (const Load& load : loads) {
    std::vector<v1::GenerateRequest> requests;
    for (const Job& job : load.jobs) requests.push_back(job.request);
    batches.push_back(client::GenerateBatch::Start(*subject_->cluster(), std::move(requests),
                                                   {.in_flight_max = load.at_once}));
  }
  for (size_t i = 0; i < loads.size(); ++i) {
    const auto answers = batches[i]->Wait();
    for (size_t j = 0; j < answers.size(); ++j) {
      LOCKSTEP_RETURN_IF_ERROR(Add(loads[i].jobs[j], answers[j]));
    }
  }
  return absl::OkStatus();
}

absl::Status Proof::Add(const Job& job, const absl::StatusOr<v1::GenerateResponse>& answer) {
  // One that a deadline cuts says nothing about bits.
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::Sample sample, WholeSample(answer));
  preemptions_ += sample.usage().preemptions();
  resumptions_ += sample.usage().resumptions();
  AddSample(job.prompt, client::BitsOf(sample), sample.usage().worker_id(),
            client::FirstDifference(prompts_[job.prompt].expected, sample));
  return absl::OkStatus();
}

void Proof::AddSample(size_t prompt, const std::string& bits, const std::string& worker,
                      const std::optional<std::string>& difference) {
  Prompt& mine = prompts_[prompt];
  ++mine.samples;
  ++mine.samples_by_bits[bits];
  auto& of_worker = mine.samples_by_worker[worker];
  of_worker.try_emplace(mine.expected_bits, 0);
  ++of_worker[bits];
  ++samples_by_worker_[worker];
  if (difference.has_value() && mine.first_difference.empty()) {
    mine.first_difference = absl::StrCat("on ", worker, ": ", *difference);
  }
}

void Proof::Require(const std::string& what, double count) { evidence_.push_back({what, count}); }

void Proof::RequireGrowth(const std::string& what, const std::string& counter) {
  growths_.push_back({what, counter, std::nullopt});
}

void Proof::RequireBatchAbove(int64_t sequences) {
  growths_.push_back({absl::StrCat("steps with more than ", sequences, " sequences"),
                      "lockstep_worker_batch_sequences", sequences});
}

void Proof::PrintPrompts() {
  for (const Prompt& prompt : prompts_) {
    std::printf("  %s … total samples: %lld, unique samples: %zu\n", prompt.label.c_str(),
                static_cast<long long>(prompt.samples), prompt.samples_by_bits.size());
    if (prompt.samples == 0) failures_.push_back(prompt.label + " has no samples");
    if (prompt.samples_by_bits.size() == 1) continue;
    failures_.push_back(prompt.label + " is not deterministic");
    for (const auto& [worker, samples] : prompt.samples_by_worker) {
      std::printf("    unique samples of %s: %zu\n", worker.c_str(), samples.size());
    }
    std::printf("    first difference from the quiet run, %s\n", prompt.first_difference.c_str());
  }
}

void Proof::PrintWorkers() {
  const std::string counts =
      absl::StrJoin(samples_by_worker_, ", ", [](std::string* out, const auto& entry) {
        absl::StrAppend(out, entry.first, " ", entry.second);
      });
  std::printf("  samples from: %s\n", counts.c_str());
  if (idle_workers_allowed_) return;
  for (const std::string& worker : subject_->workers()) {
    if (samples_by_worker_.find(worker) == samples_by_worker_.end()) {
      failures_.push_back("no sample came from " + worker);
    }
  }
}

absl::Status Proof::End() {
  LOCKSTEP_ASSIGN_OR_RETURN(const MetricsSnapshot after, subject_->ReadMetrics());
  for (const Growth& growth : growths_) {
    const double count =
        growth.batch_above.has_value()
            ? after.GrowthAbove(before_, growth.metric, static_cast<double>(*growth.batch_above))
            : after.Growth(before_, growth.metric);
    evidence_.push_back({growth.what, count});
  }
  PrintPrompts();
  PrintWorkers();
  for (const auto& [what, count] : evidence_) {
    std::printf("  %s: %.0f\n", what.c_str(), count);
    if (count <= 0) failures_.push_back(absl::StrCat(what, ": 0, so nothing was proved"));
  }
  const absl::Duration took = absl::Now() - begun_;
  std::printf("  %s after %.1f s\n", failures_.empty() ? "held" : "FAILED",
              absl::ToDoubleSeconds(took));
  Record(took);
  std::fflush(stdout);
  if (failures_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(mode_, ": ", absl::StrJoin(failures_, "; ")));
}

void Proof::Record(absl::Duration took) {
  nlohmann::ordered_json record = {{"mode", mode_},
                                   {"held", failures_.empty()},
                                   {"seconds", absl::ToDoubleSeconds(took)},
                                   {"failures", failures_}};
  for (const Prompt& prompt : prompts_) {
    nlohmann::ordered_json row = {{"prompt", prompt.label},
                                  {"samples", prompt.samples},
                                  {"unique", prompt.samples_by_bits.size()}};
    for (const auto& [worker, samples] : prompt.samples_by_worker) {
      int64_t count = 0;
      for (const auto& [bits, of_bits] : samples) count += of_bits;
      row["by_worker"][worker] = {{"samples", count}, {"unique", samples.size()}};
    }
    record["prompts"].push_back(std::move(row));
  }
  record["samples_by_worker"] = samples_by_worker_;
  for (const auto& [what, count] : evidence_) record["evidence"][what] = count;
  subject_->AddRecord(std::move(record));
}

v1::GenerateRequest RequestFor(const std::vector<int64_t>& ids, int64_t max_new_tokens,
                               uint64_t seed) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.set_exact_seed(seed);
  request.mutable_stop()->set_max_new_tokens(max_new_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

std::vector<Job> JobsInTurn(const Subject& subject, const std::vector<Job>& kinds, int64_t trials) {
  const size_t workers = subject.workers().size();
  std::vector<Job> jobs;
  for (int64_t trial = 0; trial < trials; ++trial) {
    for (const Job& kind : kinds) {
      jobs.push_back(kind);
      jobs.back().request.set_routing_key(subject.KeyOf(static_cast<size_t>(trial) % workers));
    }
  }
  return jobs;
}

}  // namespace lockstep::cli
