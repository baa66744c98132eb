// What clients that misuse their streams cost the others: latency of short calls while nothing else
// happens, and under each kind of abuse in turn, in one run against the same processes. With the
// null engine, so that only the services are measured.
//
// Large answers come twice, refused and taken by their client: the difference is the abuse, the
// rest is the work. Last, threads that only compute: what a share of the cores costs by itself.
//
//   stream_abuse_bench --out=bench/results/cluster_stream_abuse.json
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "services/cli/bench/bench_report.h"
#include "services/cli/files.h"
#include "services/cli/flags.h"
#include "services/cli/wait_until.h"
#include "tests/process/stream_abuse.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kClients = 2;
constexpr absl::Duration kPause = absl::Milliseconds(20);

// Latencies in microseconds of calls that clients make every now and then, in order of time for
// each client.
std::vector<double> MeasureOthers(const MemberCluster& cluster, absl::Duration duration) {
  std::vector<std::vector<double>> micros(kClients);
  std::vector<std::thread> threads;
  for (std::vector<double>& own : micros) {
    threads.emplace_back([&cluster, &own, duration] {
      client::RolloutClient client({.target = cluster.member("gateway").address()});
      v1::GenerateRequest request;
      request.mutable_prompt_ids()->add_ids(1);
      request.mutable_stop()->set_max_new_tokens(4);
      for (const absl::Time end = absl::Now() + duration; absl::Now() < end;) {
        const absl::Time begin = absl::Now();
        if (!client.Generate(request).ok()) std::fprintf(stderr, "a call failed\n");
        own.push_back(absl::ToDoubleMicroseconds(absl::Now() - begin));
        cli::WaitUntil([&] { return absl::Now() > begin + kPause; }, kPause, absl::Milliseconds(1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const auto& own : micros) all.insert(all.end(), own.begin(), own.end());
  return all;
}

Json Phase(const std::string& name, const std::vector<double>& micros) {
  std::printf("%-16s %6zu calls, p50 %6.0f us, p99 %6.0f us\n", name.c_str(), micros.size(),
              cli::Quantile(micros, 0.5), cli::Quantile(micros, 0.99));
  std::vector<int> whole(micros.begin(), micros.end());
  return {{"phase", name},
          {"p50_us", cli::Quantile(micros, 0.5)},
          {"p99_us", cli::Quantile(micros, 0.99)},
          {"samples_us", whole}};
}

Json Memory(const MemberCluster& cluster) {
  Json memory;
  for (const auto& [name, bytes] : MemoryOf(cluster)) memory[name] = bytes;
  return memory;
}

absl::Status Run(const cli::Arguments& arguments) {
  int64_t seconds = 20;
  int64_t unread_seconds = 60;
  std::string out;
  cli::Flags flags("stream_abuse_bench", "What misused streams cost other clients.");
  flags.Add("seconds", &seconds, {1, 3600}, "of each phase but one");
  flags.Add("unread_seconds", &unread_seconds, {1, 3600},
            "how long nothing of 50,000 prompts is read");
  flags.Add("out", &out, "file for the JSON");
  LOCKSTEP_RETURN_IF_ERROR(flags.Parse(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto cluster, MemberCluster::Start({.cluster = {
                                                                          .model = "null:",
                                                                          .kv_mib = 256,
                                                                      }}));
  Json report = cli::NewReport("bench", "stream_abuse", arguments);
  report["command"] = absl::StrCat("stream_abuse_bench ", absl::StrJoin(arguments, " "));
  const absl::Duration duration = absl::Seconds(seconds);
  MeasureOthers(*cluster, absl::Seconds(2));
  Json phases = Json::array();
  std::vector<double> quiet = MeasureOthers(*cluster, duration);
  phases.push_back(Phase("quiet", quiet));
  for (const auto& start : {StartUnreadPrompts, StartHalfClose, StartSlowReaders, StartLargeAnswers,
                            StartLargeAnswersThatAreTaken, StartBusyThreads}) {
    Json memory = {{"before_bytes", Memory(*cluster)}};
    const std::unique_ptr<StreamAbuse> abuse = start(cluster.get());
    const std::vector<double> others = MeasureOthers(
        *cluster, start == StartUnreadPrompts ? absl::Seconds(unread_seconds) : duration);
    memory["after_bytes"] = Memory(*cluster);
    memory["growth_bytes_max"] = abuse->bytes_max();
    const absl::Status stopped = abuse->Stop();
    // What was held back runs to its end.
    MeasureOthers(*cluster, absl::Seconds(6));
    // Quiet ones on both sides, so that a drift of the machine shows.
    const std::vector<double> later = MeasureOthers(*cluster, duration);
    std::vector<double> around = quiet;
    around.insert(around.end(), later.begin(), later.end());
    const double ratio = cli::Quantile(others, 0.99) / cli::Quantile(around, 0.99);
    Json phase = Phase(std::string(abuse->name()), others);
    phase["p99_over_quiet"] = ratio;
    phase["memory"] = std::move(memory);
    phase["client_saw"] = stopped.ToString();
    std::printf("%-16s p99 %.2f times that of quiet calls around it\n", "", ratio);
    phases.push_back(std::move(phase));
    phases.push_back(Phase("quiet", later));
    quiet = later;
  }
  report["phases"] = std::move(phases);
  return out.empty() ? absl::OkStatus() : cli::WriteReport(out, report);
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  const absl::Status status = lockstep::testing::Run({argv + 1, argv + argc});
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
