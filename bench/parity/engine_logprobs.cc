// Runs prompts of a checkpoint through the engine's model on the GPU, and writes what it drew and
// every logprob:
//   parity_engine MODEL_DIRECTORY SEGMENTS SPLIT_KV_SIZE CERTIFICATES REQUESTS OUT
// REQUESTS, int32: count, then of each request prompt length, new tokens, prompt ids. OUT, of each
// request: new ids int32; then raw logprobs, logprobs at kTemperature and entropies, each fp32 of
// prompt (from its second token on) and new tokens. Prompts are prefilled in chunks of at most
// SPLIT_KV_SIZE tokens, new tokens one by one. What was loaded is printed, as name=value.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/factory.h"
#include "services/worker/model/model_factory.h"
#include "tests/unit/model/step_driver.h"

namespace lockstep::bench {
namespace {

constexpr float kTemperature = 0.8f;
constexpr float kTopP = 0.95f;
constexpr uint64_t kSeed = 0x9E3779B97F4A7C15;
constexpr int kContextTokens = 4096;

struct Request {
  std::vector<int32_t> prompt;
  int new_tokens = 0;
};

struct Flags {
  std::string model;
  int segments = 0;
  int split_kv_size = 0;
  std::string certificates;
  std::string requests;
  std::string out;
};

absl::StatusOr<std::vector<Request>> ReadRequests(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto malformed = [&] { return absl::InvalidArgumentError(path + ": no requests"); };
  const size_t words = bytes.size() / sizeof(int32_t);
  std::vector<int32_t> values(words);
  std::copy_n(bytes.data(), words * sizeof(int32_t), reinterpret_cast<char*>(values.data()));
  if (values.empty()) return malformed();
  std::vector<Request> requests(static_cast<size_t>(values[0]));
  size_t at = 1;
  for (Request& request : requests) {
    if (at + 2 > words || values[at] < 1 || values[at] + at + 2 > words) return malformed();
    const auto prompt = values.begin() + static_cast<ptrdiff_t>(at) + 2;
    request.new_tokens = values[at + 1];
    request.prompt.assign(prompt, prompt + values[at]);
    at += 2 + request.prompt.size();
  }
  return requests;
}

template <typename T>
void Write(const std::vector<T>& values, std::ofstream& file) {
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
}

testing::Trace Run(worker::StepExecutor* executor, const Request& request, int chunk) {
  const int length = static_cast<int>(request.prompt.size());
  const int tokens = length + request.new_tokens;
  const int block = executor->kv_block_tokens();
  testing::Schedule schedule{.blocks = testing::Blocks(0, 1, (tokens + block - 1) / block)};
  for (int cut = chunk; cut < length; cut += chunk) schedule.cuts.push_back(cut);
  return testing::Drive(
      executor,
      {.prompt = request.prompt,
       .new_tokens = request.new_tokens,
       .sampling = {.sub_seed = kSeed, .temperature = kTemperature, .top_p = kTopP}},
      schedule);
}

absl::Status Main(const Flags& flags) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Request> requests, ReadRequests(flags.requests));
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<kernels::KernelSet> kernels,
      kernels::CreateKernelSet({.backend = "cuda", .certificates_path = flags.certificates}));
  LOCKSTEP_ASSIGN_OR_RETURN(worker::LoadedModel model,
                            worker::LoadModel({.model = flags.model,
                                               .reduction_segments = flags.segments,
                                               .split_kv_size = flags.split_kv_size,
                                               .kv_bytes = int64_t{4} << 30,
                                               .sequences_max = 8,
                                               .chunk_tokens = flags.split_kv_size,
                                               .context_tokens_max = kContextTokens},
                                              std::move(kernels)));
  const worker::FingerprintParts& contract = model.fingerprint;
  std::printf("contract_version=%d\nbackend=%s\narchitecture=%s\n", contract.contract_version,
              contract.backend.c_str(), contract.architecture.c_str());
  std::printf("reduction_segments=%d\nsplit_kv_size=%d\nkv_block=%d\nrope_digest=%s\n",
              contract.reduction_segments, contract.split_kv_size, contract.kv_block_tokens,
              contract.rope_digest.c_str());
  std::printf("temperature=%g\nweights_digest=%s\n", static_cast<double>(kTemperature),
              model.weights_digest.ToString().c_str());
  std::ofstream out(flags.out, std::ios::binary);
  for (const Request& request : requests) {
    const testing::Trace trace = Run(model.executor.get(), request, flags.split_kv_size);
    Write(trace.ids, out);
    Write(trace.scored.raw, out);
    Write(trace.drawn.raw, out);
    Write(trace.scored.scaled, out);
    Write(trace.drawn.scaled, out);
    Write(trace.scored.entropy, out);
    Write(trace.drawn.entropy, out);
  }
  out.close();
  return out.good() ? absl::OkStatus()
                    : absl::UnavailableError(absl::StrCat(flags.out, ": cannot be written"));
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Flags flags;
  if (argc != 7 || !absl::SimpleAtoi(argv[2], &flags.segments) ||
      !absl::SimpleAtoi(argv[3], &flags.split_kv_size)) {
    std::fprintf(stderr, "usage: see the top of engine_logprobs.cc\n");
    return 2;
  }
  flags.model = argv[1];
  flags.certificates = argv[4];
  flags.requests = argv[5];
  flags.out = argv[6];
  const absl::Status status = lockstep::bench::Main(flags);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
