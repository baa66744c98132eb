// Every setting of every role that is an address: nothing starts with one that is none.
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "services/gateway/gateway_options.h"
#include "services/router/router_options.h"
#include "services/scheduler/scheduler_options.h"
#include "services/worker/worker_options.h"

namespace lockstep::cli {
namespace {

using ::testing::HasSubstr;

constexpr char kServer[] =
    "server { listen: '127.0.0.1:0' metrics_listen: '127.0.0.1:0' cluster_id: 'test'"
    " plaintext: true } ";

// `text` read as configuration of one role.
template <typename Config>
absl::Status Read(const std::string& text, std::function<absl::Status(const Config&)> read) {
  Config config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
    return absl::InternalError("the test's own text does not parse");
  }
  return read(config);
}

struct Role {
  const char* name;
  const char* own_settings;  // That it requires, and its addresses.
  std::function<absl::Status(const std::string& text)> read;
};

std::vector<Role> Roles() {
  return {
      {"gateway", "routers: 'router-0:1' routers: 'dns:///router:2' scheduler: 'scheduler:3'",
       [](const std::string& text) {
         return Read<config::v1::GatewayConfig>(
             text, [](const auto& config) { return gateway::ReadGatewayOptions(config).status(); });
       }},
      {"router", "scheduler: 'scheduler:3' router_id: 'router'",
       [](const std::string& text) {
         return Read<config::v1::RouterConfig>(
             text, [](const auto& config) { return router::ReadRouterOptions(config).status(); });
       }},
      {"scheduler", "state_file: '/state'",
       [](const std::string& text) {
         return Read<config::v1::SchedulerConfig>(text, [](const auto& config) {
           return scheduler::ReadSchedulerOptions(config).status();
         });
       }},
      {"worker",
       "scheduler: 'scheduler:3' advertise: 'worker:4' worker_id: 'worker' model: 'null:'",
       [](const std::string& text) {
         return Read<config::v1::WorkerConfig>(
             text, [](const auto& config) { return worker::ReadWorkerOptions(config).status(); });
       }}};
}

struct Address {
  const char* setting;  // As configurations write it, to its value.
  const char* value;
  const char* field;  // As errors name it.
};

constexpr Address kAddresses[] = {{"{ listen: ", "127.0.0.1:0", "server.listen"},
                                  {"metrics_listen: ", "127.0.0.1:0", "server.metrics_listen"},
                                  {"routers: ", "router-0:1", "routers[0]"},
                                  {"routers: ", "dns:///router:2", "routers[1]"},
                                  {"scheduler: ", "scheduler:3", "scheduler"},
                                  {"advertise: ", "worker:4", "advertise"}};

TEST(RoleAddressesTest, NoRoleTakesASettingThatIsNoAddress) {
  int changed = 0;
  for (const Role& role : Roles()) {
    const std::string text = absl::StrCat(kServer, role.own_settings);
    EXPECT_TRUE(role.read(text).ok()) << role.name << ": " << role.read(text);
    for (const Address& address : kAddresses) {
      const std::string setting = absl::StrCat(address.setting, "'", address.value, "'");
      const size_t at = text.find(setting);
      if (at == std::string::npos) continue;
      ++changed;
      for (const char* wrong : {"x", "non sense:x", "non sense", "h:70000", ":80", "h:-1"}) {
        std::string other = text;
        other.replace(at, setting.size(), absl::StrCat(address.setting, "'", wrong, "'"));
        const absl::Status status = role.read(other);
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << role.name << " " << other;
        EXPECT_THAT(std::string(status.message()),
                    HasSubstr(absl::StrCat(address.field, ": \"", wrong, "\" is not host:port")))
            << role.name;
      }
    }
  }
  EXPECT_EQ(changed, 2 * 4 + 3 + 1 + 2);  // Of the server, the gateway, the router, the worker.
}

TEST(RoleAddressesTest, ARequiredAddressIsNotEmpty) {
  for (const Role& role : Roles()) {
    for (const Address& address : {kAddresses[2], kAddresses[3], kAddresses[4]}) {
      std::string text = absl::StrCat(kServer, role.own_settings);
      const std::string setting = absl::StrCat(address.setting, "'", address.value, "'");
      const size_t at = text.find(setting);
      if (at == std::string::npos) continue;
      text.replace(at, setting.size(), absl::StrCat(address.setting, "''"));
      const absl::Status status = role.read(text);
      EXPECT_EQ(status.message(), absl::StrCat(address.field, ": required, but not set"));
    }
  }
}

}  // namespace
}  // namespace lockstep::cli
