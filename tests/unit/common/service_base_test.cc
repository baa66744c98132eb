// What every role has around its core: the certificate that it shows, and its metrics.
#include "common/service/service_base.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/channel_pool.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/client/metrics_page.h"
#include "tests/support/capture_log.h"
#include "tests/support/certificates.h"

namespace lockstep::service {
namespace {

using ::lockstep::testing::CertificateAuthority;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

TEST_F(ServiceBaseTest, MetricsTellWhetherTheServerIsReadyAndWhenItStarted) {
  authority_.Issue("own", "router");
  const double before = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  const auto base = *Create(Config());
  EXPECT_NEAR(Value(base.get(), "\nlockstep_process_start_seconds"), before, 60);
  const auto ready = [&] { return Value(base.get(), "\nlockstep_process_ready"); };
  EXPECT_EQ(ready(), 0);
  const auto server = *rpc::Server::Start(base->ServerOptions({}), {});
  EXPECT_EQ(ready(), 0);
  server->health().SetReady(true);
  EXPECT_EQ(ready(), 1);
  server->health().BeginDrain();
  EXPECT_EQ(ready(), 0);
}

class CertificateWatchTest : public ServiceBaseTest {
 protected:
  // The lines of one look, `later` from now, by what they say.
  std::vector<std::string> Look(absl::Duration later) {
    clock_.Advance(absl::Now() + later - clock_.Now());
    const size_t before = sink_.lines().size();
    watch_->Look();
    const std::vector<std::string> lines = sink_.lines();
    return {lines.begin() + before, lines.end()};
  }
  void Begin() {
    auto security = rpc::Security::Create({.certificate = authority_.certificate("own"),
                                           .key = authority_.key("own"),
                                           .authorities = authority_.path()});
    ASSERT_TRUE(security.ok()) << security.status();
    watch_ = std::make_shared<CertificateWatch>(*security, &clock_,
                                                log::Logger({.service = "test"}, &clock_, &sink_));
  }

  base::SimClock clock_{absl::Now()};
  log::CaptureSink sink_;
  CertificateAuthority authority_{directory_, "long", 365 * absl::Hours(24)};
  std::shared_ptr<CertificateWatch> watch_;
};

TEST_F(CertificateWatchTest, AnEndThatComesOrHasComeIsLoggedOnceADay) {
  constexpr absl::Duration kDay = absl::Hours(24);
  authority_.Issue("own", "router", {.end = 20 * kDay});
  Begin();
  EXPECT_THAT(Look(absl::ZeroDuration()), IsEmpty());
  const auto soon = AllOf(HasSubstr("certificate_ends"), HasSubstr("certificate_file"));
  EXPECT_THAT(Look(7 * kDay), ElementsAre(soon));
  EXPECT_THAT(Look(7 * kDay + absl::Hours(23)), IsEmpty());
  EXPECT_THAT(Look(8 * kDay + absl::Hours(1)), ElementsAre(soon));
  EXPECT_THAT(Look(20 * kDay - absl::Hours(1)), ElementsAre(soon));
  const auto over = AllOf(HasSubstr("certificate_ended"), HasSubstr("certificate_file"));
  EXPECT_THAT(Look(20 * kDay + absl::Hours(1)), ElementsAre(over));
  EXPECT_THAT(Look(20 * kDay + absl::Hours(2)), IsEmpty());
  EXPECT_THAT(Look(21 * kDay + absl::Hours(2)), ElementsAre(over));
  authority_.Issue("own", "router", {.end = 100 * kDay});
  EXPECT_THAT(Look(21 * kDay + absl::Hours(3)), ElementsAre(HasSubstr("certificate_replaced")));
  std::filesystem::remove(authority_.certificate("own"));
  EXPECT_THAT(Look(22 * kDay), ElementsAre(HasSubstr("certificate_unread")));
  EXPECT_THAT(Look(22 * kDay + absl::Hours(1)), IsEmpty());
}

TEST_F(CertificateWatchTest, LooksComeByThemselvesUntilItIsStopped) {
  authority_.Issue("own", "router", {.end = absl::Hours(1000)});
  Begin();
  watch_->Start(absl::Milliseconds(10));
  authority_.Issue("own", "router", {.end = absl::Hours(1001)});
  const absl::Time patience = absl::Now() + absl::Seconds(30);
  const auto replaced = [this] {
    for (const std::string& line : sink_.lines()) {
      if (line.find("certificate_replaced") != line.npos) return true;
    }
    return false;
  };
  while (!replaced() && absl::Now() < patience) std::this_thread::yield();
  EXPECT_TRUE(replaced());
  watch_->Stop();
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

// What a worker registers for those that read its metrics from another host.
TEST_F(MetricsEndpointTest, AWildcardIsAdvertisedAsTheHostThatPeersUse) {
  const auto advertised = [this](const char* listen, const char* advertise,
                                 const std::string& reached_at) {
    config::v1::ServerConfig config = MetricsConfig();
    config.set_metrics_listen(listen);
    config.set_metrics_advertise(advertise);
    const std::string address = (*Create(config))->metrics_address(reached_at);
    return address.substr(0, address.rfind(':'));
  };
  EXPECT_EQ(advertised("0.0.0.0:0", "", "10.7.0.2:7106"), "https://10.7.0.2");
  EXPECT_EQ(advertised("[::]:0", "", "[fd00::7]:7106"), "https://[fd00::7]");
  EXPECT_EQ(advertised("0.0.0.0:0", "", "dns:///worker-0.worker:7106"), "https://worker-0.worker");
  EXPECT_EQ(advertised("0.0.0.0:0", "", ""), "https://0.0.0.0");
  EXPECT_EQ(advertised("127.0.0.1:0", "", "10.7.0.2:7106"), "https://127.0.0.1");
  config::v1::ServerConfig config = MetricsConfig();
  config.set_metrics_advertise("metrics.example:443");
  EXPECT_EQ((*Create(config))->metrics_address("10.7.0.2:7106"), "https://metrics.example:443");
  for (const char* bad : {"metrics.example", "dns:///metrics.example:443", "10.7.0.2:0"}) {
    config.set_metrics_advertise(bad);
    EXPECT_THAT(std::string(Create(config).status().message()),
                HasSubstr(absl::StrCat("server.metrics_advertise: \"", bad, "\"")));
  }
  config.set_metrics_advertise("10.7.0.2:1");
  config.clear_metrics_listen();
  config.clear_metrics_tokens_dir();
  EXPECT_THAT(std::string(Create(config).status().message()),
              HasSubstr("server.metrics_advertise: needs server.metrics_listen"));
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
