// What every role has around its core: the certificate that it shows, and its metrics.
#include "common/service/service_base.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/client/metrics_page.h"
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

// Which come to no call, so that no server could count them as one.
TEST_F(ServiceBaseTest, HandshakesThatFailAreCounted) {
  constexpr char kFailed[] = "\nlockstep_process_tls_handshakes_failed_total";
  authority_.Issue("own", "router");
  const auto base = *Create(Config());
  const auto server = *rpc::Server::Start(base->ServerOptions({}), {});
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  const auto own =
      rpc::MakeChannel(address, {.security = base->settings().rpc.security, .peer_name = "router"});
  ASSERT_TRUE(own->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Seconds(30))));
  EXPECT_EQ(Value(base.get(), kFailed), 0);
  const auto plaintext = rpc::MakeChannel(address);
  for (int i = 0; i < 100 && Value(base.get(), kFailed) == 0; ++i) {
    EXPECT_FALSE(
        plaintext->WaitForConnected(absl::ToChronoTime(absl::Now() + absl::Milliseconds(100))));
  }
  EXPECT_GE(Value(base.get(), kFailed), 1);
}

class MetricsEndpointTest : public ServiceBaseTest {
 protected:
  MetricsEndpointTest() {
    authority_.Issue("own", "router");
    std::filesystem::create_directory(directory_ + "/tokens");
    Write("aaaaaaaaaaaaaaaa");
  }
  void Write(const std::string& tokens) { std::ofstream(directory_ + "/tokens/scraper") << tokens; }
  config::v1::ServerConfig MetricsConfig() const {
    config::v1::ServerConfig config = Config();
    config.set_metrics_listen("127.0.0.1:0");
    config.set_metrics_tokens_dir(directory_ + "/tokens");
    return config;
  }
  absl::StatusCode Scrape(const ServiceBase& base, const std::string& token,
                          const std::string& authorities) {
    return client::MetricsPage::Fetch(
               base.metrics_address(),
               {.authorities = authorities, .peer_name = "router", .bearer_token = token})
        .status()
        .code();
  }
  // Until a look at the files has come.
  bool ScrapeBecomes(absl::StatusCode code, const ServiceBase& base, const std::string& token,
                     const std::string& authorities) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (absl::Now() < end) {
      if (Scrape(base, token, authorities) == code) return true;
    }
    return false;
  }
};

TEST_F(MetricsEndpointTest, IsSeenByTlsAndByScrapersOnly) {
  const auto base = *Create(MetricsConfig());
  EXPECT_THAT(base->metrics_address(), ::testing::StartsWith("https://127.0.0.1:"));
  EXPECT_EQ(Scrape(*base, "aaaaaaaaaaaaaaaa", authority_.path()), absl::StatusCode::kOk);
  for (const char* token : {"", "aaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}) {
    EXPECT_EQ(Scrape(*base, token, authority_.path()), absl::StatusCode::kUnauthenticated);
  }
  const CertificateAuthority other(directory_, "others");
  EXPECT_EQ(Scrape(*base, "aaaaaaaaaaaaaaaa", other.path()), absl::StatusCode::kUnavailable);
  const std::string plaintext = base->metrics_address().substr(std::strlen("https://"));
  EXPECT_EQ(client::MetricsPage::Fetch(plaintext).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(MetricsEndpointTest, TokensAndCertificatesAreReplacedWhileItServes) {
  const auto base = *Create(MetricsConfig());
  Write("aaaaaaaaaaaaaaaa\nbbbbbbbbbbbbbbbb");
  EXPECT_TRUE(ScrapeBecomes(absl::StatusCode::kOk, *base, "bbbbbbbbbbbbbbbb", authority_.path()));
  Write("bbbbbbbbbbbbbbbb");
  EXPECT_TRUE(ScrapeBecomes(absl::StatusCode::kUnauthenticated, *base, "aaaaaaaaaaaaaaaa",
                            authority_.path()));
  // A pair that does not match is passed over.
  CertificateAuthority next(directory_, "next");
  next.Issue("fresh", "router");
  std::filesystem::copy_file(authority_.certificate("fresh"), authority_.certificate("own"),
                             std::filesystem::copy_options::overwrite_existing);
  const absl::Time end = absl::Now() + absl::Milliseconds(1500);
  while (absl::Now() < end) {
    EXPECT_EQ(Scrape(*base, "bbbbbbbbbbbbbbbb", authority_.path()), absl::StatusCode::kOk);
  }
  std::filesystem::copy_file(authority_.key("fresh"), authority_.key("own"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(ScrapeBecomes(absl::StatusCode::kOk, *base, "bbbbbbbbbbbbbbbb", next.path()));
}

TEST_F(MetricsEndpointTest, PlaintextIsAChoiceAndSendsNoTokens) {
  config::v1::ServerConfig config = MetricsConfig();
  config.set_metrics_plaintext(true);
  EXPECT_THAT(std::string(Create(config).status().message()),
              HasSubstr("server.metrics_tokens_dir: tokens are sent by TLS only"));
  config.clear_metrics_tokens_dir();
  const auto base = *Create(config);
  EXPECT_TRUE(client::MetricsPage::Fetch(base->metrics_address()).ok());
  config.clear_tls();
  config.set_plaintext(true);
  EXPECT_THAT(std::string(Create(config).status().message()),
              HasSubstr("server.metrics_plaintext: is so already"));
  config = MetricsConfig();
  std::filesystem::remove_all(directory_ + "/tokens");
  EXPECT_THAT(std::string(Create(config).status().message()),
              HasSubstr("/tokens: is no directory with tokens"));
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
