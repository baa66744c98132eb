// The engine by itself, without services: workloads through an EngineLoop over a model.
// Usage: engine_bench --out=FILE [--model=random:qwen3-8b] [--backend=cuda] [--commit=ID]
//                     [--certificates=FILE] [--workloads=16x1024x64,…] [--repeats=N]
//                     [--kv_gib=N] [--sequences_max=N] [--chunk_tokens=N] [--split_kv_size=N]
//                     [--modes=deterministic,normal,unaudited,penalised,shadowed,tp2,tp2_normal]
//                     [--captures=0] [--reduction_segments=N] [--shadow_every_steps=N]
// A workload is sequences x prompt tokens x new tokens. One short run of each comes first and is
// not recorded. Each mode has an engine of its own, with kv_gib of its own, of all its ranks
// together; in each repeat all of them run a workload one after the other, in turns forwards and
// backwards. `unaudited` is deterministic without its audit, to measure what that costs; in
// `penalised` one sequence of all has a penalty, whose counts are completed on the device; those of
// tp2 are shared by two devices. `shadowed` measures what determinism costs as a worker does, every
// N steps.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "bench/engine/engine_rig.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace lockstep::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWarmupTokens = 8;

struct Flags {
  std::string out;
  std::string commit = "unknown";
  std::vector<Workload> workloads;
  int repeats = 1;
  int kv_gib = 90;
  int captures = 1;
  int shadow_every_steps = 1000;
  std::string modes = "deterministic";
  RigOptions rig;
  std::string command;
};

absl::StatusOr<Workload> ParseWorkload(const std::string& text) {
  Workload workload;
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &workload.sequences) ||
      !absl::SimpleAtoi(parts[1], &workload.prompt_tokens) ||
      !absl::SimpleAtoi(parts[2], &workload.new_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("no workload: ", text));
  }
  return workload;
}

absl::Status ParseFlag(const std::string& name, const std::string& value, Flags* flags) {
  worker::ModelOptions& model = flags->rig.model;
  const std::pair<const char*, std::string*> texts[] = {
      {"--out", &flags->out},
      {"--commit", &flags->commit},
      {"--model", &model.model},
      {"--modes", &flags->modes},
      {"--backend", &flags->rig.backend},
      {"--certificates", &flags->rig.certificates_path}};
  const std::pair<const char*, int*> numbers[] = {
      {"--repeats", &flags->repeats},
      {"--captures", &flags->captures},
      {"--shadow_every_steps", &flags->shadow_every_steps},
      {"--kv_gib", &flags->kv_gib},
      {"--sequences_max", &model.sequences_max},
      {"--chunk_tokens", &model.chunk_tokens},
      {"--split_kv_size", &model.split_kv_size},
      {"--reduction_segments", &model.reduction_segments}};
  for (const auto& [text_name, target] : texts) {
    if (name == text_name) *target = value;
    if (name == text_name) return absl::OkStatus();
  }
  for (const auto& [number_name, target] : numbers) {
    if (name == number_name && absl::SimpleAtoi(value, target)) return absl::OkStatus();
  }
  if (name != "--workloads") return absl::InvalidArgumentError(absl::StrCat(name, "=", value));
  for (const auto text : absl::StrSplit(value, ',')) {
    LOCKSTEP_ASSIGN_OR_RETURN(Workload workload, ParseWorkload(std::string(text)));
    flags->workloads.push_back(workload);
  }
  return absl::OkStatus();
}

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  worker::ModelOptions& model = flags.rig.model;
  model.model = "random:qwen3-8b";
  model.split_kv_size = 1024;
  model.chunk_tokens = 8192;
  for (int i = 0; i < argc; ++i) absl::StrAppend(&flags.command, i == 0 ? "" : " ", argv[i]);
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    LOCKSTEP_RETURN_IF_ERROR(ParseFlag(parts.first, parts.second, &flags));
  }
  if (flags.out.empty() || flags.workloads.empty()) {
    return absl::InvalidArgumentError("--out and --workloads are needed");
  }
  model.kv_bytes = int64_t{flags.kv_gib} << 30;
  model.captures = flags.captures != 0;
  model.logits_bytes_max = size_t{1} << 30;
  for (const Workload& workload : flags.workloads) {
    model.context_tokens_max =
        std::max(model.context_tokens_max, workload.prompt_tokens + workload.new_tokens);
  }
  return flags;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Json RecordOf(const std::string& mode, const Workload& workload, const WorkloadRun& run) {
  const double drawn = double{1} * workload.sequences * workload.new_tokens;
  const double prompts = double{1} * workload.sequences * workload.prompt_tokens;
  std::printf(
      "%-13s %-14s %8.3f s, prefill %7.3f s (%.0f tokens/s), %8.0f output tokens/s, decode step "
      "%.3f ms, plan %.3f ms a step, hash %016lx\n",
      mode.c_str(), workload.Name().c_str(), run.seconds, run.prefill_seconds,
      prompts / run.prefill_seconds, drawn / run.seconds, Median(run.decode_milliseconds),
      1e3 * run.plan_seconds / static_cast<double>(run.steps), run.ids_hash);
  std::fflush(stdout);
  return {{"mode", mode},
          {"workload", workload.Name()},
          {"seconds", run.seconds},
          {"prefill_seconds", run.prefill_seconds},
          {"prefill_tokens_per_second", prompts / run.prefill_seconds},
          {"output_tokens_per_second", drawn / run.seconds},
          {"steps", run.steps},
          {"plan_seconds", run.plan_seconds},
          {"decode_milliseconds_median", Median(run.decode_milliseconds)},
          {"ids_hash", absl::StrCat(absl::Hex(run.ids_hash, absl::kZeroPad16))},
          {"decode_milliseconds", run.decode_milliseconds}};
}

struct Mode {
  std::string name;
  std::unique_ptr<EngineRig> rig;
};

absl::Status NoMode(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat("no mode: ", name));
}

absl::StatusOr<std::vector<Mode>> MakeModes(const Flags& flags) {
  std::vector<Mode> modes;
  for (const auto name : absl::StrSplit(flags.modes, ',')) {
    Mode& mode = modes.emplace_back();
    mode.name = std::string(name);
    RigOptions options = flags.rig;
    options.audit = mode.name != "unaudited";
    options.penalised = mode.name == "penalised";
    const bool shadowed = mode.name == "shadowed";
    options.shadow_every_steps = shadowed ? flags.shadow_every_steps : 0;
    absl::string_view kind = mode.name;
    if (absl::ConsumePrefix(&kind, "tp")) {
      const absl::string_view ranks = kind.substr(0, kind.find('_'));
      if (!absl::SimpleAtoi(ranks, &options.ranks)) return NoMode(mode.name);
      kind.remove_prefix(ranks.size());
      if (!absl::ConsumePrefix(&kind, "_")) kind = "deterministic";
    }
    options.normal = kind == "normal";
    if (kind != "deterministic" && !options.normal && options.audit && !options.penalised &&
        !shadowed) {
      return NoMode(mode.name);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(mode.rig, EngineRig::Create(options));
    std::printf("%s loaded in %.1f s\n", mode.name.c_str(), mode.rig->load_seconds());
    for (Workload workload : flags.workloads) {
      workload.new_tokens = std::min(kWarmupTokens, workload.new_tokens);
      workload.prompt_tokens = std::min(kWarmupTokens, workload.prompt_tokens);
      LOCKSTEP_RETURN_IF_ERROR(mode.rig->Run(workload, 0).status());
    }
  }
  return modes;
}

absl::Status Main(int argc, char** argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Flags flags, ParseFlags(argc, argv));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<Mode> modes, MakeModes(flags));
  Json load_seconds;
  for (const Mode& mode : modes) load_seconds[mode.name] = mode.rig->load_seconds();
  Json runs = Json::array();
  for (int repeat = 0; repeat < flags.repeats; ++repeat) {
    for (const Workload& workload : flags.workloads) {
      for (const Mode& mode : modes) {
        LOCKSTEP_ASSIGN_OR_RETURN(const WorkloadRun run, mode.rig->Run(workload, 1));
        runs.push_back(RecordOf(mode.name, workload, run));
      }
      std::reverse(modes.begin(), modes.end());
    }
  }
  Json shadows;
  for (const Mode& mode : modes) {
    if (mode.name == "shadowed") shadows = mode.rig->ShadowSeries();
  }
  const worker::ModelOptions& model = flags.rig.model;
  const Json record = {{"context",
                        {{"model", model.model},
                         {"backend", flags.rig.backend},
                         {"commit", flags.commit},
                         {"command", flags.command},
                         {"kv_bytes", model.kv_bytes},
                         {"sequences_max", model.sequences_max},
                         {"chunk_tokens", model.chunk_tokens},
                         {"split_kv_size", model.split_kv_size},
                         {"context_tokens_max", model.context_tokens_max},
                         {"load_seconds", load_seconds}}},
                       {"shadows", shadows},
                       {"runs", runs}};
  std::ofstream file(flags.out);
  file << record.dump(1) << "\n";
  if (!file.flush()) return absl::InternalError(absl::StrCat("cannot write ", flags.out));
  return absl::OkStatus();
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  const absl::Status status = lockstep::bench::Main(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
