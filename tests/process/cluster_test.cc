// The binary as a person meets it: a cluster of real processes, asked, proved, refused, stopped.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "services/cli/cluster/local_ports.h"
#include "services/cli/files.h"
#include "services/cli/record.h"
#include "services/cli/wait_until.h"
#include "services/client/generate_batch.h"
#include "services/client/sample_bits.h"
#include "tests/process/local_cluster.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class ClusterProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = LocalCluster::Start();
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  std::string Target() const { return "--target=" + cluster_->target(); }

  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(ClusterProcessTest, AnswersAndReplaysFromTheCommandLine) {
  const Outcome health = RunLockstep({"health", Target()});
  EXPECT_EQ(health.ended, "exit code 0") << health.output;

  const std::string record = cluster_->run_dir() + "/record.json";
  const Outcome answer = RunLockstep(
      {"generate", Target(), "--prompt=12+34*2=", "--seed=1", "--n=2", "--record=" + record});
  EXPECT_EQ(answer.ended, "exit code 0");
  EXPECT_THAT(answer.output, HasSubstr("answer"));
  EXPECT_THAT(answer.output, HasSubstr("sample 1"));

  const Outcome replay = RunLockstep({"replay", Target(), "--record=" + record});
  EXPECT_EQ(replay.ended, "exit code 0") << replay.output;
  EXPECT_THAT(replay.output, HasSubstr("sample 1: equal in every bit; receipt equal"));

  const Outcome stream =
      RunLockstep({"generate", Target(), "--prompt=12+34*2=", "--seed=1", "--stream"});
  EXPECT_EQ(stream.ended, "exit code 0");
  EXPECT_THAT(stream.output, HasSubstr("finish"));
}

TEST_F(ClusterProcessTest, ReplayNamesTheFirstPositionThatDiffers) {
  const std::string path = cluster_->run_dir() + "/record.json";
  ASSERT_EQ(RunLockstep({"generate", Target(), "--prompt=12+34*2=", "--seed=1", "--record=" + path})
                .ended,
            "exit code 0");
  std::string text = cli::ReadFile(path).value();
  const size_t ids = text.find("\"token_ids\":\"") + 13;
  text[ids] = text[ids] == 'A' ? 'B' : 'A';
  ASSERT_TRUE(cli::WriteFile(path, text).ok());
  const Outcome replay = RunLockstep({"replay", Target(), "--record=" + path});
  EXPECT_EQ(replay.ended, "exit code 1");
  EXPECT_THAT(replay.output, HasSubstr("ids differ at position 0"));
}

// A deadline may cut an answer anywhere; what there is of it must be what the whole begins with.
TEST_F(ClusterProcessTest, ReplayComparesWhatADeadlineHasLeft) {
  const std::string path = cluster_->run_dir() + "/cut.json";
  // How much there is by then is the machine's business; there must be some of every sample.
  const auto some_of_each = [&path] {
    const auto record = cli::ReadRecord(path);
    if (!record.ok()) return false;
    const auto& samples = record->response.samples();
    return std::none_of(samples.begin(), samples.end(),
                        [](const v1::Sample& sample) { return sample.token_ids().empty(); });
  };
  for (const char* timeout : {"500ms", "1s", "2s", "4s"}) {
    const Outcome cut =
        RunLockstep({"generate", Target(), "--prompt=Tell me a story:", "--seed=1", "--n=3",
                     "--ignore_eos", "--max_new_tokens=8000", "--min_new_tokens=7000", "--stop=the",
                     "--top_logprobs=2", "--entropy", "--prompt_logprobs_from=1",
                     absl::StrCat("--timeout=", timeout), "--record=" + path});
    EXPECT_EQ(cut.ended, "exit code 1") << cut.output;
    if (some_of_each()) break;
  }
  ASSERT_TRUE(some_of_each());
  const Outcome replay = RunLockstep({"replay", Target(), "--record=" + path});
  EXPECT_EQ(replay.ended, "exit code 0") << replay.output;
  EXPECT_THAT(replay.output, HasSubstr("sample 2: was cut short; its "));
  EXPECT_THAT(replay.output, HasSubstr(" positions are equal in every bit"));
  // A replay that is cut itself is no difference.
  EXPECT_THAT(RunLockstep({"replay", Target(), "--record=" + path, "--timeout=100ms"}).output,
              Not(HasSubstr("DATA_LOSS")));
}

// What compares nothing, or measures a part, has shown nothing.
TEST_F(ClusterProcessTest, AProofOfNothingIsAFailure) {
  const std::string folder = cluster_->run_dir();
  ASSERT_TRUE(cli::WriteFile(folder + "/empty.json", "{\"request\":{},\"response\":{}}").ok());
  ASSERT_TRUE(cli::WriteFile(folder + "/none.txt", "\n\n").ok());
  const std::string zero = folder + "/zero.json";
  ASSERT_EQ(
      RunLockstep({"generate", Target(), "--prompt=1", "--max_new_tokens=0", "--record=" + zero})
          .ended,
      "exit code 0");
  for (const auto& [words, ended, why] :
       std::vector<std::tuple<std::vector<std::string>, std::string, std::string>>{
           {{"replay", "--record=" + folder + "/empty.json"}, "exit code 2", "has no sample"},
           {{"replay", "--record=" + zero}, "exit code 1", "hold nothing to compare"},
           {{"compare", "--other=" + cluster_->target(), "--prompts=" + folder + "/none.txt"},
            "exit code 2",
            "holds no prompt"},
           {{"score", "--ids=1"}, "exit code 2", "at least 2"},
           {{"bench", "--streams=1", "--repeats=1", "--new_tokens=8000", "--timeout=1s"},
            "exit code 1",
            "cut short"},
           {{"verify", "--mode=all"}, "exit code 2", "--run_dir: "}}) {
    std::vector<std::string> all = words;
    all.push_back(Target());
    const Outcome outcome = RunLockstep(all);
    EXPECT_EQ(outcome.ended, ended) << words[0] << ": " << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(why)) << words[0];
  }
}

TEST_F(ClusterProcessTest, BytesThatAreNoTextReachTheResult) {
  const std::string folder = cluster_->run_dir();
  ASSERT_TRUE(cli::WriteFile(folder + "/latin1.txt", "caf\xe9 au lait\n").ok());
  const std::string compared = folder + "/compared.json";
  EXPECT_EQ(RunLockstep({"compare", Target(), "--other=" + cluster_->target(), "--new_tokens=4",
                         "--prompts=" + folder + "/latin1.txt", "--out=" + compared})
                .ended,
            "exit code 0");
  EXPECT_EQ(nlohmann::json::parse(cli::ReadFile(compared).value())["answers"][0][0],
            "caf\uFFFD au lait");
  const std::string measured = folder + "/\xff.json";
  EXPECT_EQ(RunLockstep({"bench", Target(), "--streams=1", "--repeats=1", "--new_tokens=1",
                         "--out=" + measured})
                .ended,
            "exit code 0");
  EXPECT_EQ(nlohmann::json::parse(cli::ReadFile(measured).value())["streams"], 1);
}

TEST_F(ClusterProcessTest, EveryModeOfVerifyHolds) {
  const Outcome verify = RunLockstep(
      {"verify", Target(), "--mode=all", "--trials=4", "--run_dir=" + cluster_->run_dir()});
  EXPECT_EQ(verify.ended, "exit code 0") << verify.output;
  EXPECT_THAT(verify.output, HasSubstr("9 of 9 modes held"));
}

// One worker has the model for itself, one shares it between two ranks; verify sends samples to
// both, and kills each of them in mid-stream so that the other goes on.
TEST(MixedClusterTest, EveryModeOfVerifyHoldsOverWorkersOfDifferentRanks) {
  auto started = LocalCluster::Start({"--tensor_parallel=1,2", "--reduction_segments=2"});
  ASSERT_TRUE(started.ok()) << started.status();
  const Outcome verify = RunLockstep({"verify", "--target=" + (*started)->target(), "--mode=all",
                                      "--trials=8", "--run_dir=" + (*started)->run_dir()},
                                     absl::Minutes(5));
  EXPECT_EQ(verify.ended, "exit code 0") << verify.output;
  EXPECT_THAT(verify.output, HasSubstr("10 of 10 modes held"));
  EXPECT_THAT(verify.output, HasSubstr("workers of tensor_parallel 2"));
}

TEST_F(ClusterProcessTest, ASecondClusterOnItsPortIsRefused) {
  const std::string port = cluster_->target().substr(cluster_->target().rfind(':') + 1);
  const Outcome second = RunLockstep(
      {"up", "--port=" + port, "--run_dir=" + cluster_->run_dir() + "/second", "--model=null:"});
  EXPECT_EQ(second.ended, "exit code 1");
  EXPECT_THAT(second.output, HasSubstr("port " + port));
  EXPECT_THAT(second.output, HasSubstr("Another cluster runs there?"));
  // The first one has not noticed.
  EXPECT_EQ(RunLockstep({"health", Target()}).ended, "exit code 0");
}

TEST_F(ClusterProcessTest, ASecondClusterInItsDirectoryIsRefused) {
  const Outcome second =
      RunLockstep({"up", "--port=0", "--run_dir=" + cluster_->run_dir(), "--model=null:"});
  EXPECT_EQ(second.ended, "exit code 1");
  EXPECT_THAT(second.output, HasSubstr("belongs to a cluster that runs"));
  EXPECT_EQ(RunLockstep({"health", Target()}).ended, "exit code 0");
}

TEST_F(ClusterProcessTest, TerminationUnderLoadFinishesEveryRequest) {
  v1::GenerateRequest request;
  request.set_prompt_text("Tell me a story:");
  request.set_seed(3);
  request.mutable_stop()->set_max_new_tokens(1000);
  request.mutable_stop()->set_ignore_eos(true);
  const auto expected = cluster_->client().Generate(request);
  ASSERT_TRUE(expected.ok()) << expected.status();

  const auto batch = client::GenerateBatch::Start(
      cluster_->client(), std::vector<v1::GenerateRequest>(40, request), {.in_flight_max = 40});
  // The gateway's view is half a second old: they must run for longer than that.
  ASSERT_TRUE(cli::WaitUntil(
      [&] {
        const auto info = cluster_->client().GetServerInfo();
        if (!info.ok()) return false;
        int64_t running = 0;
        for (const auto& worker : info->workers()) running += worker.running_sequences();
        return running >= 8;
      },
      absl::Seconds(20)));
  cluster_->SignalUp(SIGTERM);
  for (const auto& answer : batch->Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(client::FirstDifference(expected->samples(0), answer->samples(0)), std::nullopt);
  }
  const auto ended = cluster_->WaitForEnd(absl::Seconds(60));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(*ended, "exit code 0");
  EXPECT_THAT(cluster_->Output(), Not(HasSubstr("killed")));
  EXPECT_EQ(cluster_->PidOf("gateway"), -1);
  EXPECT_FALSE(std::filesystem::exists(cluster_->run_dir() + "/gateway.address"));
}

// Ctrl-C of a terminal reaches `up`, and so does what the script around it sends on the way out.
TEST_F(ClusterProcessTest, TheSameSignalFromTwoSidesKillsNothing) {
  cluster_->SignalUp(SIGINT);
  cluster_->SignalUp(SIGTERM);
  const auto ended = cluster_->WaitForEnd(absl::Seconds(60));
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(*ended, "exit code 0");
  EXPECT_THAT(cluster_->Output(), Not(HasSubstr("killed")));
}

TEST_F(ClusterProcessTest, ChildrenEndWithASupervisorThatIsKilled) {
  const pid_t worker = cluster_->PidOf("worker-0");
  ASSERT_GT(worker, 1);
  const int port = std::stoi(cluster_->target().substr(cluster_->target().rfind(':') + 1));
  cluster_->SignalUp(SIGKILL);
  ASSERT_TRUE(cluster_->WaitForEnd(absl::Seconds(10)).ok());
  EXPECT_TRUE(cli::WaitUntil([&] { return cli::CheckPortsFree({port}).ok(); }, absl::Seconds(10)));
  // A new cluster may take the directory over.
  EXPECT_THAT(RunLockstep({"up", "--port=0", "--run_dir=" + cluster_->run_dir(),
                           "--model=null:", "--start_timeout=1ms"})
                  .output,
              Not(HasSubstr("belongs to a cluster that runs")));
}

TEST(GenerateTest, APartOfAnAnswerIsNoSuccess) {
  const auto cluster = LocalCluster::Start({"--model=random:qwen3-tiny", "--workers=1"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> words = {"generate",
                                    "--target=" + (*cluster)->target(),
                                    "--prompt_ids=1,2,3",
                                    "--n=64",
                                    "--max_new_tokens=4000",
                                    "--ignore_eos",
                                    "--timeout=1s"};
  EXPECT_EQ(RunLockstep(words).ended, "exit code 1");
  words.push_back("--stream");
  EXPECT_EQ(RunLockstep(words).ended, "exit code 1");
}

TEST(BenchTest, WritesMachineCommitCommandAndSamples) {
  const auto cluster = LocalCluster::Start({"--model=null:"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::string target = "--target=" + (*cluster)->target();
  const std::string path = (*cluster)->run_dir() + "/result.json";
  const Outcome latency =
      RunLockstep({"bench", target, "--mode=latency", "--calls=300", "--out=" + path});
  EXPECT_EQ(latency.ended, "exit code 0") << latency.output;
  const auto result = nlohmann::json::parse(cli::ReadFile(path).value());
  EXPECT_EQ(result["calls"], 300);
  EXPECT_EQ(result["medians_of_100_us"].size(), 3u);
  EXPECT_LE(result["p50_us"], result["p99_us"]);
  EXPECT_EQ(result["command"],
            "lockstep bench " + target + " --mode=latency --calls=300 --out=" + path);
  for (const char* field : {"commit", "machine", "time"}) EXPECT_TRUE(result.contains(field));

  const Outcome throughput = RunLockstep(
      {"bench", target, "--streams=4", "--new_tokens=16", "--repeats=2", "--out=" + path});
  EXPECT_EQ(throughput.ended, "exit code 0") << throughput.output;
  EXPECT_EQ(nlohmann::json::parse(cli::ReadFile(path).value())["samples"].size(), 2u);
}

TEST(CommandLineTest, AnAnswerThatCannotBeWrittenIsAFailure) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"--help"}, {"generate", "--help"}, {"size", "--model=deploy/demo-model"}}) {
    const Outcome unheard = RunLockstepUnheard(words);
    EXPECT_EQ(unheard.ended, "exit code 1") << words[0];
    EXPECT_THAT(unheard.output, HasSubstr("standard output could not be written"));
  }
  EXPECT_EQ(RunLockstepUnheard({"size"}).ended, "exit code 2");
}

TEST(CommandLineTest, SaysWhatItExpects) {
  EXPECT_EQ(RunLockstep({"--help"}).ended, "exit code 0");
  EXPECT_EQ(RunLockstep({}).ended, "exit code 2");
  const Outcome unknown = RunLockstep({"frobnicate"});
  EXPECT_EQ(unknown.ended, "exit code 2");
  EXPECT_THAT(unknown.output, HasSubstr("'frobnicate' is no verb"));
  EXPECT_THAT(RunLockstep({"worker"}).output, HasSubstr("--config: required"));
  for (const char* verb : {"gateway", "router", "scheduler", "worker"}) {
    const Outcome absent = RunLockstep({verb, "--config=/no/such"});
    EXPECT_EQ(absent.ended, "exit code 2") << verb;
    EXPECT_THAT(absent.output, HasSubstr("/no/such"));
  }
  EXPECT_EQ(RunLockstep({"health", "--role=worker", "--config=/no/such"}).ended, "exit code 2");
  EXPECT_EQ(RunLockstep({"replay", "--record=/no/such"}).ended, "exit code 2");
  const Outcome both = RunLockstep({"health", "--target=127.0.0.1:1", "--role=worker",
                                    "--config=deploy/config/worker.textproto"});
  EXPECT_EQ(both.ended, "exit code 2");
  EXPECT_THAT(both.output, HasSubstr("--target: not with --role"));
  EXPECT_THAT(RunLockstep({"worker", "--config=deploy/config/router.textproto"}).output,
              HasSubstr("router.textproto:"));
  // Before anybody is called: nobody could be here.
  const std::string target = "--target=127.0.0.1:1";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"health", target, "--service=nope"},
           {"health", "--target="},
           {"compare", target, "--other=nope", "--prompts=README.md"},
           {"size", "--model=/no/such"},
           {"size", "--model=docs"},
           {"size", "--model=null:"},
           {"certify", "--model=/no/such"},
           {"up", "--model=docs", "--port=0"},
           {"replay", target, "--record=/dev/zero"},
           {"compare", target, "--other=127.0.0.1:1", "--prompts=/dev/null"},
           {"generate", target, "--prompt=1", "--request_id=\xff"},
           {"worker", "--config=/dev/zero"},
           {"health", "--role=worker", "--config=/dev/zero"},
           {"generate", target, "--prompt=1", "--record=/no/such/x"},
           {"generate", target, "--prompt=1", "--record=/tmp"},
           {"bench", target, "--out=/no/such/x"},
           {"verify", target, "--out=/no/such/x"},
           {"compare", target, "--other=127.0.0.1:1", "--prompts=README.md", "--out=/tmp"}}) {
    const Outcome refused = RunLockstep(words);
    EXPECT_EQ(refused.ended, "exit code 2") << words[0] << ": " << refused.output;
  }
  EXPECT_THAT(RunLockstep({"certify", "--model=random:qwen3-tiny", "--backend=cpu"}).output,
              HasSubstr("0 certified, 0 refused"));
  const Outcome lost = RunLockstep({"health", target});
  EXPECT_EQ(lost.ended, "exit code 1");
  EXPECT_THAT(lost.output, HasSubstr("127.0.0.1:1 was tried once, for "));
  const Outcome size = RunLockstep({"size", "--model=deploy/demo-model", "--kv_mib=40"});
  EXPECT_THAT(size.output, HasSubstr("= 2 x 4 x 2 x 64 x 4 = 4096"));
  EXPECT_THAT(size.output, HasSubstr("10240"));
  // Two kv heads over two ranks: each holds half of every token.
  const Outcome shared =
      RunLockstep({"size", "--model=deploy/demo-model", "--kv_mib=20", "--tensor_parallel=2"});
  EXPECT_THAT(shared.output, HasSubstr("= 2 x 4 x 1 x 64 x 4 = 2048"));
  EXPECT_THAT(shared.output, HasSubstr("10240"));
  EXPECT_THAT(RunLockstep({"size", "--model=deploy/demo-model", "--tensor_parallel=3"}).output,
              HasSubstr("3: must be a power of two"));
}

TEST(CommandLineTest, SizeRefusesADownloadThatWasCut) {
  namespace fs = std::filesystem;
  const fs::path model = fs::path(::testing::TempDir()) / "cut_model";
  fs::remove_all(model);
  fs::copy("deploy/demo-model", model);
  const std::vector<std::string> size = {"size", "--model=" + model.string()};
  std::vector<std::string> checked = size;
  checked.push_back("--check_files");
  const Outcome whole = RunLockstep(checked);
  EXPECT_EQ(whole.ended, "exit code 0") << whole.output;
  EXPECT_THAT(whole.output, HasSubstr("tensors, a tokenizer of"));

  for (const char* name : {"tokenizer.json", "model.safetensors"}) {
    const fs::path file = model / name;
    const auto bytes = fs::file_size(file);
    for (const auto left : {bytes - 2, bytes / 2, decltype(bytes){0}}) {
      fs::resize_file(file, left);
      const Outcome cut = RunLockstep(checked);
      EXPECT_NE(cut.ended, "exit code 0") << name << " of " << left << " bytes";
      EXPECT_THAT(cut.output, HasSubstr(name));
    }
    fs::remove(file);
    const Outcome absent = RunLockstep(checked);
    EXPECT_NE(absent.ended, "exit code 0");
    EXPECT_THAT(absent.output, HasSubstr(name));
    // The arithmetic needs config.json alone.
    EXPECT_EQ(RunLockstep(size).ended, "exit code 0");
    fs::copy_file(fs::path("deploy/demo-model") / name, file);
  }
  fs::remove_all(model);
  EXPECT_EQ(RunLockstep({"size", "--model=random:qwen3-tiny", "--check_files"}).ended,
            "exit code 2");
}

}  // namespace
}  // namespace lockstep::testing
