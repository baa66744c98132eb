#include "services/cli/cluster/cluster_layout.h"

#include <set>

#include "common/config/text_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lockstep/config/v1/config.pb.h"
#include "services/cli/cluster/local_ports.h"
#include "services/gateway/gateway_options.h"
#include "services/router/router_options.h"
#include "services/scheduler/scheduler_options.h"
#include "services/worker/worker_options.h"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;

// Loads a file and checks it as the role does at its start.
template <typename Config, typename Read>
absl::Status CheckFile(const std::string& path, Read read) {
  const auto config = config::LoadTextProto<Config>(path);
  return config.ok() ? read(*config).status() : config.status();
}

absl::Status CheckText(const Member& member) {
  const auto check = [&](auto config, auto read) {
    const absl::Status status = config::ParseTextProto(member.name, member.config, &config);
    return status.ok() ? read(config).status() : status;
  };
  if (member.role == "gateway") {
    return check(config::v1::GatewayConfig(), gateway::ReadGatewayOptions);
  }
  if (member.role == "router") return check(config::v1::RouterConfig(), router::ReadRouterOptions);
  if (member.role == "worker") return check(config::v1::WorkerConfig(), worker::ReadWorkerOptions);
  return check(config::v1::SchedulerConfig(), scheduler::ReadSchedulerOptions);
}

TEST(ClusterLayoutTest, EveryMemberHasAConfigurationThatItsRoleAccepts) {
  const auto layout =
      MakeLayout({.model = "deploy/demo-model", .workers = 3, .port = 7100, .kv_mib = 8});
  ASSERT_TRUE(layout.ok()) << layout.status();
  ASSERT_EQ(layout->members.size(), 6u);
  for (const Member& member : layout->members) {
    EXPECT_TRUE(CheckText(member).ok()) << member.name << ": " << CheckText(member);
  }
}

// The flags of `up` take nothing beyond these, so a worker never refuses what passed them.
TEST(ClusterLayoutTest, TheLargestOfEverythingIsAConfigurationThatAWorkerAccepts) {
  const auto layout = MakeLayout({.model = "deploy/demo-model",
                                  .workers = kWorkersMax,
                                  .port = 7100,
                                  .kv_mib = kKvMibMax,
                                  .threads = kThreadsMax,
                                  .chunk_tokens = kChunkTokensMax,
                                  .reduction_segments = kSegmentsMax,
                                  .tensor_parallel = {kRanksMax}});
  ASSERT_TRUE(layout.ok()) << layout.status();
  for (const Member& member : layout->members) {
    EXPECT_TRUE(CheckText(member).ok()) << member.name << ": " << CheckText(member);
  }
}

TEST(ClusterLayoutTest, PortsFollowTheGatewaysAndAreDistinct) {
  const auto layout = MakeLayout({.model = "null:", .workers = 2, .port = 7100}).value();
  EXPECT_EQ(layout.gateway().port, 7100);
  const std::vector<int> ports = layout.ports();
  EXPECT_EQ(ports.front(), 7100);
  EXPECT_EQ(ports.back(), 7109);
  EXPECT_EQ(std::set<int>(ports.begin(), ports.end()).size(), 10u);
}

TEST(ClusterLayoutTest, FreePortsAreDistinctAndFree) {
  const auto layout = MakeLayout({.model = "null:", .workers = 8, .port = 0}).value();
  const std::vector<int> ports = layout.ports();
  EXPECT_EQ(std::set<int>(ports.begin(), ports.end()).size(), ports.size());
  EXPECT_TRUE(CheckPortsFree(ports).ok());
}

TEST(ClusterLayoutTest, RefusesWhatCannotRun) {
  const auto error = [](const ClusterOptions& options) {
    return std::string(MakeLayout(options).status().message());
  };
  EXPECT_THAT(error({.model = "null:", .workers = 2, .port = 65530}), HasSubstr("--port: 65530"));
  EXPECT_THAT(error({.model = "null:", .workers = 2, .port = 7100, .tensor_parallel = {1, 2, 4}}),
              HasSubstr("--tensor_parallel: 3 numbers for 2 workers"));
  EXPECT_THAT(error({.model = "no/such", .workers = 2, .port = 7100}), HasSubstr("no/such"));
}

TEST(ExampleConfigTest, EveryExampleIsAccepted) {
  const std::string folder = "deploy/config/";
  EXPECT_EQ(CheckFile<config::v1::GatewayConfig>(folder + "gateway.textproto",
                                                 gateway::ReadGatewayOptions),
            absl::OkStatus());
  EXPECT_EQ(
      CheckFile<config::v1::RouterConfig>(folder + "router.textproto", router::ReadRouterOptions),
      absl::OkStatus());
  EXPECT_EQ(CheckFile<config::v1::SchedulerConfig>(folder + "scheduler.textproto",
                                                   scheduler::ReadSchedulerOptions),
            absl::OkStatus());
  for (const char* name : {"worker.textproto", "worker_gpu.textproto"}) {
    EXPECT_EQ(CheckFile<config::v1::WorkerConfig>(folder + name, worker::ReadWorkerOptions),
              absl::OkStatus());
  }
}

}  // namespace
}  // namespace lockstep::cli
