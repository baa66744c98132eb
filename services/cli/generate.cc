#include <cstdio>
#include <string>

#include "common/base/status_macros.h"
#include "services/cli/connect_flags.h"
#include "services/cli/files.h"
#include "services/cli/generate_flags.h"
#include "services/cli/print.h"
#include "services/cli/record.h"
#include "services/cli/sample_end.h"
#include "services/cli/verbs.h"

namespace lockstep::cli {
namespace {

// Shows text as it becomes certain, and each sample's end.
absl::Status Stream(client::RolloutClient* cluster, const v1::GenerateRequest& request) {
  absl::Status ended;
  LOCKSTEP_RETURN_IF_ERROR(cluster->GenerateStream(request, [&](const v1::GenerateDelta& delta) {
    if (!delta.token_ids().empty()) {
      std::printf("sample %lld from token %lld: \"%s\"\n  ids        %s\n  raw        %s\n",
                  static_cast<long long>(delta.index()),
                  static_cast<long long>(delta.token_begin()), delta.text().c_str(),
                  IdsText(delta.token_ids()).c_str(), FloatsText(delta.logprobs().raw()).c_str());
    } else if (!delta.text().empty()) {
      std::printf("sample %lld: \"%s\"\n", static_cast<long long>(delta.index()),
                  delta.text().c_str());
    }
    if (delta.has_finished()) {
      PrintSample(delta.finished());
      ended.Update(CheckEnded(delta.finished()));
    }
    std::fflush(stdout);
  }));
  return ended;
}

}  // namespace

absl::Status RunGenerate(const Arguments& arguments) {
  ConnectFlags connect;
  GenerateFlags generate;
  std::string record_path;
  bool stream = false;
  Flags flags("generate", "Continues a prompt and prints text, ids and logprobs.");
  connect.AddTo(&flags);
  generate.AddTo(&flags);
  flags.Add("stream", &stream, "print tokens as they come");
  flags.Add("record", &record_path, "file to keep request and answer in, for lockstep replay");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  if (stream && !record_path.empty()) {
    return absl::InvalidArgumentError("--record keeps whole answers; leave --stream out");
  }
  if (!record_path.empty()) LOCKSTEP_RETURN_IF_ERROR(CheckWritable(record_path));
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::GenerateRequest request, generate.Build());

  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::RolloutClient cluster(reach);
  if (stream) return Stream(&cluster, request);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::GenerateResponse response, cluster.Generate(request));
  PrintResponse(response);
  if (!record_path.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(WriteRecord(record_path, {.request = request, .response = response}));
  }
  for (const v1::Sample& sample : response.samples()) {
    LOCKSTEP_RETURN_IF_ERROR(CheckEnded(sample));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cli
