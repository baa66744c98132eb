// What every role has around its core: the certificate that it shows, and its metrics.
#include "common/service/service_base.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"

namespace lockstep::service {
namespace {

using ::lockstep::testing::CertificateAuthority;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEnd[] = "lockstep_process_certificate_end_seconds";

std::string MakeDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "lockstep-service-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

class ServiceBaseTest : public ::testing::Test {
 protected:
  ~ServiceBaseTest() override { std::filesystem::remove_all(directory_); }

  config::v1::ServerConfig Config() const {
    config::v1::ServerConfig config;
    config.set_listen("127.0.0.1:0");
    config.set_cluster_id("test");
    config.set_log_level("error");
    config.mutable_tls()->set_certificate_file(authority_.certificate("own"));
    config.mutable_tls()->set_key_file(authority_.key("own"));
    config.mutable_tls()->set_authorities_file(authority_.path());
    config.mutable_tls()->set_reload_seconds(1);
    return config;
  }
  absl::StatusOr<std::unique_ptr<ServiceBase>> Create(const config::v1::ServerConfig& config) {
    auto settings = ReadServerSettings(config);
    if (!settings.ok()) return settings.status();
    return ServiceBase::Create("router", *std::move(settings));
  }
  static double Value(ServiceBase* base, const std::string& series) {
    const std::string text = base->registry()->ToText();
    const size_t begin = text.find(series + " ");
    if (begin == std::string::npos) return -1;
    return std::stod(text.substr(begin + series.size()));
  }

  const std::string directory_ = MakeDirectory();
  CertificateAuthority authority_{directory_};
};

TEST_F(ServiceBaseTest, ACertificateThatPeersWouldNotTakeStopsTheStart) {
  authority_.Issue("own", "worker");
  const absl::Status other = Create(Config()).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("own.pem: peers ask for the DNS name \"router\", the certificate has "
                        "worker"));
  authority_.Issue("own", "router");
  EXPECT_TRUE(Create(Config()).ok());
}

TEST_F(ServiceBaseTest, MetricsTellWhenCertificatesEndAndFollowTheFiles) {
  authority_.Issue("own", "router", {.end = absl::Hours(100)});
  const auto base = *Create(Config());
  const std::string own = absl::StrCat(kEnd, "{file=\"certificate\"}");
  const auto left = [&](const std::string& series) {
    return Value(base.get(), series) - absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  };
  EXPECT_NEAR(left(own), 100 * 3600, 60);
  EXPECT_NEAR(left(absl::StrCat(kEnd, "{file=\"authorities\"}")), 24 * 3600, 60);
  authority_.Issue("own", "router", {.end = absl::Hours(200)});
  EXPECT_NEAR(left(own), 200 * 3600, 60);
  std::filesystem::remove(authority_.certificate("own"));
  EXPECT_NEAR(left(own), 200 * 3600, 60);
}

TEST_F(ServiceBaseTest, WithPlaintextNoEndIsShown) {
  config::v1::ServerConfig config = Config();
  config.clear_tls();
  config.set_plaintext(true);
  const auto base = *Create(config);
  EXPECT_THAT(base->registry()->ToText(), Not(HasSubstr(kEnd)));
}

}  // namespace
}  // namespace lockstep::service
