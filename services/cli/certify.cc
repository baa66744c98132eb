#include <cstdio>
#include <string>

#include "common/base/status_macros.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/cli/cluster/cluster_layout.h"
#include "services/cli/model_flag.h"
#include "services/cli/verbs.h"
#include "services/worker/certification.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kSequencesMax = 8192;

void PrintCertified(const kernels::CertificationReport& report) {
  std::printf("certified: bit-equal to the reference, the fastest\n  %-16s %6s %10s %8s  %s\n",
              "layer", "rows", "us", "offered", "algorithm");
  for (const kernels::CertifiedAlgorithm& one : report.certified) {
    std::printf("  %-16s %6d %10.1f %8d  %s\n", one.layer.c_str(), one.rows, one.microseconds,
                one.offered, one.algorithm.c_str());
  }
}

void PrintRefused(const kernels::CertificationReport& report) {
  std::printf("refused: other bits than the reference\n  %-16s %6s %26s  %s\n", "layer", "rows",
              "differing of compared", "algorithm");
  for (const kernels::RefusedAlgorithm& one : report.refused) {
    std::printf("  %-16s %6d %12llu %13llu  %s\n", one.layer.c_str(), one.rows,
                static_cast<unsigned long long>(one.differing),
                static_cast<unsigned long long>(one.compared), one.algorithm.c_str());
  }
}

}  // namespace

absl::Status RunCertify(const Arguments& arguments) {
  config::v1::WorkerConfig config;
  std::string model;
  std::string backend = "cuda";
  std::string certificates;
  int64_t reduction_segments = 0;
  int64_t chunk_tokens = 0;
  int64_t sequences_max = 0;
  Flags flags(
      "certify",
      "Finds the fastest linear kernels that give the contract's bits on this device, and\n"
      "prints them and what was refused. A worker of one rank in deterministic mode does the\n"
      "same when it starts; one of several ranks has other layers, shadows other choices.");
  flags.Require("model", &model, "Hugging Face directory, or random:SHAPE");
  flags.Add("backend", &backend, "cuda or cpu");
  flags.Add("certificates", &certificates,
            "file to take certificates from and add missing ones to; by default none is kept");
  flags.Add("reduction_segments", &reduction_segments, {0, kSegmentsMax},
            "as in the worker's configuration; 0 is the default");
  flags.Add("chunk_tokens", &chunk_tokens, {0, kChunkTokensMax},
            "as in the worker's configuration; 0 is the default");
  flags.Add("sequences_max", &sequences_max, {0, kSequencesMax},
            "as in the worker's configuration; 0 is the default");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_RETURN_IF_ERROR(CheckModel(model));
  // What a worker must have and certification has no use for.
  config.mutable_server()->set_listen("127.0.0.1:0");
  config.mutable_server()->set_cluster_id("certify");
  config.mutable_server()->set_plaintext(true);
  config.set_worker_id("certify");
  config.set_scheduler("127.0.0.1:1");
  config.set_model(model);
  config.set_backend(backend);
  config.set_certificates_path(certificates);
  config.set_reduction_segments(reduction_segments);
  config.set_chunk_tokens(chunk_tokens);
  config.set_sequences_max(sequences_max);
  LOCKSTEP_ASSIGN_OR_RETURN(const worker::WorkerOptions options, worker::ReadWorkerOptions(config));
  LOCKSTEP_ASSIGN_OR_RETURN(const kernels::CertificationReport report,
                            worker::CertifyModel(options));
  std::printf("%s\n", report.environment.c_str());
  PrintCertified(report);
  PrintRefused(report);
  std::printf("%zu certified, %zu refused\n", report.certified.size(), report.refused.size());
  return absl::OkStatus();
}

}  // namespace lockstep::cli
