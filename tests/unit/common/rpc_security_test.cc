// Connections by TLS, and who may call what over them.
#include "common/rpc/security.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/rpc/access.h"
#include "common/rpc/bearer_tokens.h"
#include "common/rpc/health_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/unit/common/echo_fixture.h"

namespace lockstep::rpc {
namespace {

using ::lockstep::testing::CertificateAuthority;
using ::testing::HasSubstr;

constexpr char kUnary[] = "/lockstep.test.EchoService/Unary";
constexpr char kToken[] = "0123456789abcdef";

std::string MakeDirectory() {
  std::string path = std::filesystem::temp_directory_path() / "lockstep-security-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// A server that only "alice" may call, by certificate or by token.
class SecurityTest : public EchoFixture {
 protected:
  SecurityTest() {
    for (const char* name : {"server", "alice", "bob"}) authority_.Issue(name, name);
    service_.unary.start = [](UnaryEcho& handler) { handler.Respond(EchoMessage()); };
  }
  ~SecurityTest() override { std::filesystem::remove_all(directory_); }

  TlsFiles Files(const std::string& holder) const {
    return {.certificate = authority_.certificate(holder),
            .key = authority_.key(holder),
            .authorities = authority_.path(),
            .reload = absl::Seconds(1)};
  }
  void Serve(ServerOptions options = {}) {
    options.address = "127.0.0.1:0";
    options.security = *Security::Create(Files("server"));
    options.access = {{kUnary, {"alice"}}};
    server_ = *Server::Start(options, {&service_});
  }
  void ServeWithTokens() {
    std::filesystem::create_directory(directory_ + "/tokens");
    Write(directory_ + "/tokens/alice", kToken);
    Serve({.client_certificates = ClientCertificates::kOptional,
           .tokens = *BearerTokens::Create(
               {.directory = directory_ + "/tokens", .roles = {"alice"}}, &clock_)});
  }
  absl::Status CallBy(ChannelOptions options) {
    if (options.peer_name.empty()) options.peer_name = "server";
    stub_ = test::EchoService::NewStub(
        MakeChannel(absl::StrCat("127.0.0.1:", server_->port()), options));
    return Call(EchoMessage(), {.deadline = absl::Now() + absl::Seconds(20)}).status();
  }
  absl::Status CallBy(const std::string& holder) {
    return CallBy({.security = *Security::Create(Files(holder))});
  }
  ChannelOptions WithoutCertificate() const {
    return {.security = *Security::Create({.authorities = authority_.path()})};
  }

  const std::string directory_ = MakeDirectory();
  CertificateAuthority authority_{directory_};
  base::SimClock clock_;
};

TEST_F(SecurityTest, ANameInTheCertificateIsTheCallersRole) {
  Serve();
  EXPECT_TRUE(CallBy("alice").ok());
  const absl::Status refused = CallBy("bob");
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("needs the role alice"));
}

TEST_F(SecurityTest, HealthIsEverybodysWhoCanConnect) {
  Serve();
  const auto channel =
      MakeChannel(absl::StrCat("127.0.0.1:", server_->port()),
                  {.security = *Security::Create(Files("bob")), .peer_name = "server"});
  EXPECT_EQ(CheckHealth(channel, "live", absl::Seconds(20)).value(), true);
}

TEST_F(SecurityTest, NobodyConnectsWithoutACertificateOrWithOneOfAnotherAuthority) {
  Serve();
  EXPECT_EQ(CallBy(WithoutCertificate()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(CallBy(ChannelOptions()).code(), absl::StatusCode::kUnavailable);
  CertificateAuthority other(directory_, "others");
  other.Issue("stranger", "alice");
  EXPECT_EQ(CallBy("stranger").code(), absl::StatusCode::kUnavailable);
}

TEST_F(SecurityTest, AServerWithAnotherNameOrAuthorityIsNotTrusted) {
  Serve();
  ChannelOptions options = {.security = *Security::Create(Files("alice")), .peer_name = "bob"};
  EXPECT_EQ(CallBy(options).code(), absl::StatusCode::kUnavailable);
  CertificateAuthority other(directory_, "others");
  TlsFiles files = Files("alice");
  files.authorities = other.path();
  EXPECT_EQ(CallBy({.security = *Security::Create(files)}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(SecurityTest, ATokenStandsForACertificate) {
  ServeWithTokens();
  ChannelOptions options = WithoutCertificate();
  EXPECT_EQ(CallBy(options).code(), absl::StatusCode::kUnauthenticated);
  options.bearer_token = "fedcba9876543210";
  EXPECT_EQ(CallBy(options).code(), absl::StatusCode::kUnauthenticated);
  options.bearer_token = kToken;
  EXPECT_TRUE(CallBy(options).ok());
  EXPECT_TRUE(CallBy("alice").ok());
  EXPECT_EQ(CallBy("bob").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(SecurityTest, FilesThatAreReplacedCountForLaterConnections) {
  Serve();
  EXPECT_EQ(CallBy("bob").code(), absl::StatusCode::kPermissionDenied);
  // A new authority signs everybody again; the old one counts for nothing from then on.
  CertificateAuthority renewed(directory_);
  for (const char* name : {"server", "alice", "bob"}) renewed.Issue(name, name);
  const absl::Time end = absl::Now() + absl::Seconds(30);
  absl::Status status;
  do {
    status = CallBy("alice");
  } while (!status.ok() && absl::Now() < end);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SecurityTest, AFileThatIsNotWhatItShouldBeIsNamed) {
  authority_.Issue("past", "server", {.end = -absl::Minutes(1)});
  authority_.Issue("future", "server", {.begin = absl::Minutes(1)});
  authority_.Issue("signer", "server", {.usage = "codeSigning"});
  Write(directory_ + "/empty.pem", "");
  const auto error = [&](TlsFiles files) {
    return std::string(Security::Create(std::move(files)).status().message());
  };
  TlsFiles files = Files("server");
  EXPECT_EQ(error(files), "");
  files.key = authority_.key("alice");
  EXPECT_THAT(error(files), HasSubstr("alice.key: is the key of another certificate"));
  files = Files("past");
  EXPECT_THAT(error(files), HasSubstr("past.pem: the certificate is over: it ended at 20"));
  files = Files("future");
  EXPECT_THAT(error(files), HasSubstr("future.pem: the certificate has not begun: it does at 20"));
  files = Files("signer");
  EXPECT_THAT(error(files),
              HasSubstr("signer.pem: the certificate's key usage is not for clients"));
  files = Files("server");
  files.authorities = directory_ + "/empty.pem";
  EXPECT_THAT(error(files), HasSubstr("empty.pem: holds no certificate"));
  files.authorities = directory_;
  EXPECT_THAT(error(files), HasSubstr(directory_ + ": is a directory, not a file in PEM form"));
  files = Files("server");
  files.key = directory_;
  EXPECT_THAT(error(files), HasSubstr(directory_ + ": is a directory, not a file in PEM form"));
  files = Files("nobody");
  EXPECT_THAT(error(files), HasSubstr("nobody.pem: cannot be opened"));
  files = Files("server");
  files.key = "";
  EXPECT_NE(error(files), "");
}

TEST_F(SecurityTest, AServersCertificateHasTheNameAndTheUseThatPeersAskFor) {
  authority_.Issue("client", "server", {.usage = "clientAuth"});
  const auto error = [&](const std::string& holder, const std::string& name) {
    return std::string((*Security::Create(Files(holder)))->CheckServes(name).message());
  };
  EXPECT_EQ(error("server", "server"), "");
  EXPECT_THAT(error("server", "router"),
              HasSubstr("server.pem: peers ask for the DNS name \"router\", the certificate has "
                        "server"));
  EXPECT_THAT(error("client", "server"), HasSubstr("key usage is not for servers"));
}

// Between two authorities both stand in the file, and the old one may come to its end there.
TEST_F(SecurityTest, OneOfTheAuthoritiesMustBeValidAndEachCertificateOfAChain) {
  authority_.Issue("past", "server", {.end = -absl::Minutes(1)});
  const auto join = [](const std::string& to, const std::vector<std::string>& from) {
    std::ofstream out(to);
    for (const std::string& one : from) out << std::ifstream(one).rdbuf();
  };
  TlsFiles files = Files("server");
  files.authorities = directory_ + "/both.pem";
  join(files.authorities, {authority_.certificate("past"), authority_.path()});
  const auto both = Security::Create(files);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_LT((*both)->Ends()->authorities, absl::Now());
  EXPECT_GT((*both)->Ends()->certificate, absl::Now());
  files.authorities = authority_.certificate("past");
  EXPECT_FALSE(Security::Create(files).ok());
  files = Files("server");
  files.certificate = directory_ + "/chain.pem";
  join(files.certificate, {authority_.certificate("server"), authority_.certificate("past")});
  EXPECT_FALSE(Security::Create(files).ok());
  Write(files.certificate, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_THAT(std::string(Security::Create(files).status().message()),
              HasSubstr("chain.pem: holds a certificate that cannot be read"));
}

TEST(AccessTest, TheFirstRuleThatFitsDecidesAndWithoutOneNobodyMayCall) {
  const std::vector<AccessRule> rules = {{"/a.S/Stop", {"operator"}},
                                         {"/a.S/", {"trainer", "operator"}}};
  const auto code = [&](const char* method, const std::vector<std::string>& roles) {
    return CheckAccess(rules, method, roles).code();
  };
  EXPECT_EQ(code("/a.S/Stop", {"operator"}), absl::StatusCode::kOk);
  EXPECT_EQ(code("/a.S/Stop", {"trainer"}), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code("/a.S/Go", {"nobody", "trainer"}), absl::StatusCode::kOk);
  EXPECT_EQ(code("/a.S/Go", {}), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code("/b.S/Go", {"operator"}), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code("", {"operator"}), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code("/grpc.health.v1.Health/Check", {}), absl::StatusCode::kOk);
}

class BearerTokensTest : public ::testing::Test {
 protected:
  ~BearerTokensTest() override { std::filesystem::remove_all(directory_); }
  absl::StatusOr<std::unique_ptr<BearerTokens>> Create() {
    return BearerTokens::Create(
        {.directory = directory_,
         .roles = {"trainer", "operator"},
         .on_error = [this](const absl::Status& error) { told_ = std::string(error.message()); }},
        &clock_);
  }
  std::string Error() { return std::string(Create().status().message()); }

  const std::string directory_ = MakeDirectory();
  base::SimClock clock_;
  std::string told_;
};

TEST_F(BearerTokensTest, EachLineIsATokenOfTheFilesRole) {
  Write(directory_ + "/trainer", "aaaaaaaaaaaaaaaa\n\n  bbbbbbbbbbbbbbbb \n");
  Write(directory_ + "/operator", "cccccccccccccccc");
  const auto tokens = *Create();
  EXPECT_EQ(tokens->RoleOf("aaaaaaaaaaaaaaaa"), "trainer");
  EXPECT_EQ(tokens->RoleOf("bbbbbbbbbbbbbbbb"), "trainer");
  EXPECT_EQ(tokens->RoleOf("cccccccccccccccc"), "operator");
  EXPECT_EQ(tokens->RoleOf("dddddddddddddddd"), "");
  EXPECT_EQ(tokens->RoleOf(""), "");
}

TEST_F(BearerTokensTest, FilesAreReadAgainAndABadOneLeavesTheOldTokens) {
  Write(directory_ + "/trainer", "aaaaaaaaaaaaaaaa");
  const auto tokens = *Create();
  Write(directory_ + "/trainer", "bbbbbbbbbbbbbbbb");
  EXPECT_EQ(tokens->RoleOf("aaaaaaaaaaaaaaaa"), "trainer");
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(tokens->RoleOf("aaaaaaaaaaaaaaaa"), "");
  EXPECT_EQ(tokens->RoleOf("bbbbbbbbbbbbbbbb"), "trainer");
  Write(directory_ + "/trainer", "short");
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(told_, "");
  EXPECT_EQ(tokens->RoleOf("bbbbbbbbbbbbbbbb"), "trainer");
  EXPECT_THAT(told_, HasSubstr("/trainer: a token of 5 characters"));
}

TEST_F(BearerTokensTest, ADirectoryWithoutTokensOrWithBadOnesIsRefusedWithoutShowingThem) {
  EXPECT_THAT(Error(), HasSubstr("holds no token in trainer or operator"));
  std::filesystem::create_directory(directory_ + "/trainer");
  EXPECT_THAT(Error(), HasSubstr("/trainer: is a directory"));
  std::filesystem::remove(directory_ + "/trainer");
  Write(directory_ + "/trainer", "secret");
  EXPECT_THAT(Error(), HasSubstr("/trainer: a token of 6 characters, fewer than 16"));
  Write(directory_ + "/trainer", "aaaaaaaaaaaaaaaa # of a person");
  EXPECT_THAT(Error(), HasSubstr("/trainer: a token with a space in it"));
  Write(directory_ + "/trainer", kToken);
  Write(directory_ + "/operator", kToken);
  EXPECT_THAT(Error(), HasSubstr("/operator: a token that is also one of trainer"));
  std::filesystem::remove_all(directory_);
  EXPECT_THAT(Error(), HasSubstr(directory_ + ": is no directory with tokens"));
  EXPECT_THAT(Error(), ::testing::Not(HasSubstr(kToken)));
}

}  // namespace
}  // namespace lockstep::rpc
