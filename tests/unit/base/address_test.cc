#include "common/base/address.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::base {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNoAddresses[] = {
    "",        "x",      "7100",      ":7100",   "host:",      "host:x",    "host:-1",
    "host:+1", "h: 80",  "h:65536",   "h:70000", "h:99999999", "non sense", "non sense:x",
    "a b:80",  "::1:80", "[::1:80",   "::1]:80", "[]:80",      "[host]:80", "http://host:80",
    "h/x:80",  "h:80/x", "h:80,i:80", "h:8o",    "h\n:80",     "[::1]80",   "[::1]",
};

TEST(AddressTest, ReadsNamesAndAddressesOfBothKinds) {
  const auto parsed = [](const char* address) {
    const auto read = ParseHostPort(address);
    return read.ok() ? read->host + " " + std::to_string(read->port) : "refused";
  };
  EXPECT_EQ(parsed("127.0.0.1:7100"), "127.0.0.1 7100");
  EXPECT_EQ(parsed("worker-0.my_workers.lockstep:1"), "worker-0.my_workers.lockstep 1");
  EXPECT_EQ(parsed("0.0.0.0:0"), "0.0.0.0 0");
  EXPECT_EQ(parsed("[::]:65535"), ":: 65535");
  EXPECT_EQ(parsed("[::ffff:10.0.0.1]:80"), "::ffff:10.0.0.1 80");
  EXPECT_EQ(parsed("[fe80::1%eth0]:80"), "fe80::1%eth0 80");
}

TEST(AddressTest, WhatIsNoAddressIsRefusedByFieldAndValue) {
  for (const char* address : kNoAddresses) {
    EXPECT_FALSE(ParseHostPort(address).ok()) << address;
    for (const absl::Status& status :
         {CheckListenAddress("listen", address), CheckTarget("listen", address)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(std::string("listen: \"") + address + "\" is not host:port"));
    }
  }
}

TEST(AddressTest, AFreePortCanBeListenedOnAndNotCalled) {
  EXPECT_TRUE(CheckListenAddress("listen", "127.0.0.1:0").ok());
  EXPECT_FALSE(CheckTarget("scheduler", "127.0.0.1:0").ok());
}

TEST(AddressTest, NamesThatGrpcResolvesAreTargets) {
  for (const char* name :
       {"dns:///router:7102", "dns://10.0.0.1/router:7102", "dns:router:7102",
        "dns:///gateway.example", "ipv4:10.0.0.1:80,10.0.0.2:80", "ipv6:[::1]:80",
        "unix:/run/gateway", "unix:///run/gateway", "unix-abstract:gateway", "[::1]:80"}) {
    EXPECT_TRUE(CheckTarget("routers[0]", name).ok()) << name;
  }
  for (const char* name : {"dns:///", "dns://router:7102", "dns:///router:x", "ipv4:10.0.0.1",
                           "ipv4:10.0.0.1:80,", "unix:", "unix://", "http:///router:7102"}) {
    EXPECT_FALSE(CheckTarget("routers[0]", name).ok()) << name;
    EXPECT_FALSE(CheckListenAddress("listen", name).ok()) << name;
  }
}

}  // namespace
}  // namespace lockstep::base
