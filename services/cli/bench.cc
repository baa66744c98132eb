#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/connect_flags.h"
#include "services/cli/files.h"
#include "services/cli/generate_flags.h"
#include "services/cli/sample_end.h"
#include "services/cli/verbs.h"
#include "services/client/generate_batch.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kCallsPerMedian = 100;
constexpr int64_t kCallsPerHop = 10;
constexpr int64_t kWarmUpTokens = 32;
// More would only fill this process' memory.
constexpr int64_t kCallsMax = 10'000'000;
constexpr int64_t kStreamsMax = 65536;
constexpr int64_t kRequestsMax = int64_t{1} << 20;
constexpr int64_t kRepeatsMax = 1000;

struct BenchOptions {
  int64_t calls = 10000;
  int64_t streams = 32;
  int64_t requests = 0;  // 0: two for each stream.
  int64_t prompt_tokens = 16;
  int64_t new_tokens = 128;
  int64_t repeats = 5;
};

// A prompt that no other number shares a KV block with.
v1::GenerateRequest RequestOf(const v1::GetServerInfoResponse& info, int64_t number,
                              int64_t prompt_tokens, int64_t new_tokens) {
  v1::GenerateRequest request;
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    request.mutable_prompt_ids()->add_ids(
        (number * 31 + i * 7) %
        std::min<int64_t>(info.vocabulary(), info.fingerprint().vocabulary_sampled()));
  }
  request.set_seed(static_cast<uint64_t>(number));
  request.mutable_stop()->set_max_new_tokens(new_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

// One call after the other over one connection: what the services add, when the engine is null.
absl::Status Latency(client::RolloutClient* cluster, const v1::GetServerInfoResponse& info,
                     const BenchOptions& options, Json* report) {
  const int64_t warm_up = std::min<int64_t>(options.calls / 10, 500);
  std::vector<double> micros;
  std::vector<double> one_hop_micros;
  for (int64_t i = -warm_up; i < options.calls; ++i) {
    const v1::GenerateRequest request =
        RequestOf(info, i + warm_up, options.prompt_tokens, /*new_tokens=*/1);
    const absl::Time begin = absl::Now();
    LOCKSTEP_RETURN_IF_ERROR(WholeSample(cluster->Generate(request)).status());
    if (i < 0) continue;
    micros.push_back(absl::ToDoubleMicroseconds(absl::Now() - begin));
    // What one hop costs on this machine at this moment, to compare with.
    if (i % kCallsPerHop != 0) continue;
    const absl::Time hop_begin = absl::Now();
    LOCKSTEP_RETURN_IF_ERROR(cluster->GetServerInfo().status());
    one_hop_micros.push_back(absl::ToDoubleMicroseconds(absl::Now() - hop_begin));
  }
  (*report)["calls"] = options.calls;
  (*report)["p50_us"] = Quantile(micros, 0.5);
  (*report)["p90_us"] = Quantile(micros, 0.9);
  (*report)["p99_us"] = Quantile(micros, 0.99);
  (*report)["max_us"] = Quantile(micros, 1);
  (*report)["gateway_alone_p50_us"] = Quantile(one_hop_micros, 0.5);
  // In order of time, so that a drift shows: the median of each hundred calls.
  Json medians = Json::array();
  for (size_t begin = 0; begin < micros.size(); begin += kCallsPerMedian) {
    const size_t end = std::min(micros.size(), begin + kCallsPerMedian);
    medians.push_back(Quantile({micros.begin() + static_cast<ptrdiff_t>(begin),
                                micros.begin() + static_cast<ptrdiff_t>(end)},
                               0.5));
  }
  (*report)["medians_of_100_us"] = std::move(medians);
  std::printf(
      "latency of one token, %lld calls: p50 %.0f us, p90 %.0f us, p99 %.0f us\n"
      "a call that the gateway answers by itself: p50 %.0f us\n",
      static_cast<long long>(options.calls), Quantile(micros, 0.5), Quantile(micros, 0.9),
      Quantile(micros, 0.99), Quantile(one_hop_micros, 0.5));
  return absl::OkStatus();
}

// Keeps `streams` requests in flight and counts generated tokens.
absl::Status Throughput(client::RolloutClient* cluster, const v1::GetServerInfoResponse& info,
                        const BenchOptions& options, Json* report) {
  const int64_t count = options.requests > 0 ? options.requests : 2 * options.streams;
  std::vector<double> rates;
  std::vector<double> seconds;
  for (int64_t repeat = -1; repeat < options.repeats; ++repeat) {
    // The first round warms caches, connections and clocks, for which short answers do.
    const int64_t new_tokens =
        repeat < 0 ? std::min(kWarmUpTokens, options.new_tokens) : options.new_tokens;
    std::vector<v1::GenerateRequest> requests;
    for (int64_t i = 0; i < count; ++i) {
      requests.push_back(
          RequestOf(info, (repeat + 1) * count + i, options.prompt_tokens, new_tokens));
    }
    const absl::Time begin = absl::Now();
    const auto batch = client::GenerateBatch::Start(
        *cluster, std::move(requests), {.in_flight_max = static_cast<size_t>(options.streams)});
    int64_t tokens = 0;
    for (const auto& answer : batch->Wait()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const v1::Sample sample, WholeSample(answer));
      tokens += sample.usage().generated_tokens();
    }
    if (tokens == 0) return absl::FailedPreconditionError("no token came, so nothing was measured");
    if (repeat < 0) continue;
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    rates.push_back(static_cast<double>(tokens) / seconds.back());
  }
  (*report)["streams"] = options.streams;
  (*report)["requests"] = count;
  (*report)["prompt_tokens"] = options.prompt_tokens;
  (*report)["new_tokens"] = options.new_tokens;
  (*report)["tokens_per_second"] = Quantile(rates, 0.5);
  (*report)["samples"] = rates;
  (*report)["seconds"] = seconds;
  std::printf("throughput at %lld streams: %.0f generated tokens/s (median of %lld), %.2f s\n",
              static_cast<long long>(options.streams), Quantile(rates, 0.5),
              static_cast<long long>(options.repeats), Quantile(seconds, 0.5));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunBench(const Arguments& arguments) {
  ConnectFlags connect;
  BenchOptions options;
  std::string mode = "throughput";
  std::string out;
  Flags flags("bench", "Drives load on a running cluster and writes the result as JSON.");
  connect.AddTo(&flags);
  flags.Add("mode", &mode, "throughput, or latency (for a cluster of lockstep up --model=null:)");
  flags.Add("calls", &options.calls, {1, kCallsMax}, "latency: calls of one token");
  flags.Add("streams", &options.streams, {1, kStreamsMax}, "throughput: requests in flight");
  flags.Add("requests", &options.requests, {0, kRequestsMax},
            "throughput: of one round; 0 is two for each stream");
  flags.Add("prompt_tokens", &options.prompt_tokens, {1, kTokensMax}, "of each request");
  flags.Add("new_tokens", &options.new_tokens, {1, kTokensMax},
            "throughput: tokens generated by each request");
  flags.Add("repeats", &options.repeats, {1, kRepeatsMax},
            "throughput: rounds measured, after one to warm up");
  flags.Add("out", &out, "file for the JSON");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  if (mode != "latency" && mode != "throughput") {
    return absl::InvalidArgumentError(
        absl::StrCat("--mode: '", mode, "' is neither throughput nor latency"));
  }
  if (!out.empty()) LOCKSTEP_RETURN_IF_ERROR(CheckWritable(out));

  LOCKSTEP_ASSIGN_OR_RETURN(const auto reach, connect.Options());
  client::RolloutClient cluster(reach);
  LOCKSTEP_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, cluster.GetServerInfo());
  Json report = NewReport("bench", mode, arguments);
  report["model"] = info.model();
  report["workers"] = info.workers_size();
  report["backend"] = info.fingerprint().backend();
  LOCKSTEP_RETURN_IF_ERROR(mode == "latency" ? Latency(&cluster, info, options, &report)
                                             : Throughput(&cluster, info, options, &report));
  return out.empty() ? absl::OkStatus() : WriteReport(out, report);
}

}  // namespace lockstep::cli
