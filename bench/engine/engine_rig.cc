#include "bench/engine/engine_rig.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "kernels/factory.h"
#include "tests/support/philox_data.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kWaitingMax = 4096;
constexpr float kFrequencyPenalty = 0.1f;

std::vector<int32_t> RandomIds(uint64_t seed, int count, int32_t vocabulary) {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const uint32_t word =
        testing::PhiloxWord(static_cast<uint32_t>(seed), static_cast<uint64_t>(i));
    ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(vocabulary)));
  }
  return ids;
}

absl::StatusOr<worker::LoadedModel> Load(const RigOptions& options) {
  const kernels::BackendOptions backend = {.backend = options.backend,
                                           .threads = 0,
                                           .certificates_path = options.certificates_path,
                                           .normal = options.normal,
                                           .shadows = options.shadow_every_steps > 0,
                                           .audit = options.audit};
  if (options.ranks == 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto kernels, kernels::CreateKernelSet(backend));
    return worker::LoadModel(options.model, std::move(kernels));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto group,
                            kernels::CreateCollectiveGroup(options.backend, options.ranks));
  worker::ModelOptions model = options.model;
  model.kv_bytes /= options.ranks;
  return worker::LoadModelOnRanks(model, group, [&](int rank) {
    kernels::BackendOptions own = backend;
    own.collective = group->End(rank);
    return kernels::CreateKernelSet(own);
  });
}

}  // namespace

std::string Workload::Name() const {
  return absl::StrCat(sequences, "x", prompt_tokens, "x", new_tokens);
}

EngineRig::EngineRig() : metrics_(&registry_) {}
EngineRig::~EngineRig() = default;

absl::StatusOr<std::unique_ptr<EngineRig>> EngineRig::Create(const RigOptions& options) {
  std::unique_ptr<EngineRig> rig(new EngineRig);
  const absl::Time begin = rig->clock_.Now();
  rig->penalised_ = options.penalised;
  LOCKSTEP_ASSIGN_OR_RETURN(rig->model_, Load(options));
  rig->load_seconds_ = absl::ToDoubleSeconds(rig->clock_.Now() - begin);
  EngineRig* const raw = rig.get();
  LOCKSTEP_ASSIGN_OR_RETURN(
      rig->loop_, worker::EngineLoop::Create(
                      {.split_kv_size = options.model.split_kv_size,
                       .chunk_tokens = options.model.chunk_tokens,
                       .sequences_max = options.model.sequences_max,
                       .context_tokens_max = options.model.context_tokens_max,
                       .waiting_max = kWaitingMax,
                       .vocabulary = rig->model_.facts.vocabulary,
                       .prefix_cache = false,
                       .shadow_every_steps = options.shadow_every_steps,
                       .weight_version = base::WeightVersion(1)},
                      {.executor = rig->model_.executor.get(),
                       .clock = &rig->clock_,
                       .metrics = &rig->metrics_,
                       .on_step = [raw](const worker::StepOutput& output) { raw->Collect(output); },
                       .on_failure =
                           [raw](const absl::Status& status) {
                             base::MutexLock lock(&raw->mutex_);
                             raw->failure_ = status;
                             raw->ended_.NotifyAll();
                           }}));
  return rig;
}

void EngineRig::Collect(const worker::StepOutput& output) {
  Step step = {.time = clock_.Now(), .prefilled = !output.cuts.empty()};
  base::MutexLock lock(&mutex_);
  for (const worker::SequenceOutput& one : output.outputs) {
    step.drawn += one.ids.empty() ? 0 : 1;
    for (size_t i = 0; i < one.ids.size(); ++i) {
      base::Hasher hasher;
      hasher.Number(one.ticket.value()).Number(static_cast<uint64_t>(one.token_begin) + i);
      // A sum, so that the order of sequences in a step does not show.
      ids_hash_ += hasher.Number(static_cast<uint64_t>(one.ids[i])).Finish().low;
    }
    if (one.end.has_value()) --running_;
  }
  steps_.push_back(step);
  if (running_ == 0) ended_.NotifyAll();
}

absl::StatusOr<WorkloadRun> EngineRig::Run(const Workload& workload, uint64_t seed) {
  std::vector<worker::SequenceStart> starts;
  // Tickets tell sequences apart in the hash, so equal runs have equal ones.
  const uint64_t first_ticket = next_ticket_;
  next_ticket_ = first_ticket + static_cast<uint64_t>(workload.sequences);
  for (int i = 0; i < workload.sequences; ++i) {
    const uint64_t sequence_seed = seed * 4096 + static_cast<uint64_t>(i);
    worker::SequenceStart start;
    start.ticket = base::TicketId(first_ticket + static_cast<uint64_t>(i));
    start.prompt_ids = RandomIds(sequence_seed, workload.prompt_tokens, model_.facts.vocabulary);
    start.plan = {.split_kv_size = model_.fingerprint.split_kv_size,
                  .length = workload.prompt_tokens};
    start.parameters.max_new_tokens = workload.new_tokens;
    start.sub_seed = sequence_seed;
    start.credit_tokens = workload.new_tokens;
    if (penalised_ && i == 0) start.parameters.frequency_penalty = kFrequencyPenalty;
    starts.push_back(std::move(start));
  }
  {
    base::MutexLock lock(&mutex_);
    running_ = workload.sequences;
    steps_.clear();
    ids_hash_ = 0;
  }
  const double plan_before = metrics_.plan_seconds.sum();
  const absl::Time begin = clock_.Now();
  for (const absl::Status& status : loop_->Start(std::move(starts))) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  {
    base::MutexLock lock(&mutex_);
    while (running_ > 0 && failure_.ok()) ended_.Wait(&mutex_);
    LOCKSTEP_RETURN_IF_ERROR(failure_);
  }
  next_ticket_ = first_ticket;
  WorkloadRun run = Summarise(workload, begin);
  run.plan_seconds = metrics_.plan_seconds.sum() - plan_before;
  return run;
}

std::map<std::string, double> EngineRig::ShadowSeries() const {
  std::map<std::string, double> series;
  const std::string text = registry_.ToText();
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    double value = 0;
    absl::string_view name = parts.first;
    absl::ConsumePrefix(&name, "lockstep_worker_");
    const bool ours = absl::StartsWith(name, "determinism_") || absl::StartsWith(name, "served_") ||
                      absl::StartsWith(name, "shadow");
    if (ours && absl::SimpleAtod(parts.second, &value)) series[std::string(parts.first)] = value;
  }
  return series;
}

WorkloadRun EngineRig::Summarise(const Workload& workload, absl::Time begin) const {
  base::MutexLock lock(&mutex_);
  WorkloadRun run = {.seconds = absl::ToDoubleSeconds(steps_.back().time - begin),
                     .steps = static_cast<int64_t>(steps_.size()),
                     .ids_hash = ids_hash_};
  int whole = 0;  // Decode steps of all sequences, in a row.
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].prefilled) run.prefill_seconds = absl::ToDoubleSeconds(steps_[i].time - begin);
    whole = !steps_[i].prefilled && steps_[i].drawn == workload.sequences ? whole + 1 : 0;
    if (whole < 2) continue;
    run.decode_milliseconds.push_back(
        absl::ToDoubleMilliseconds(steps_[i].time - steps_[i - 1].time));
  }
  return run;
}

}  // namespace lockstep::bench
