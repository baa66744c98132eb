#include "common/service/service_base.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/log/rate_limit.h"
#include "common/rpc/failed_handshakes.h"

namespace lockstep::service {
namespace {

// Anybody who can connect can be refused as often as he likes.
constexpr absl::Duration kRefusalLogPeriod = absl::Seconds(10);

}  // namespace

ServiceBase::ServiceBase(Private, const std::string& name, ServerSettings settings)
    : settings_(std::move(settings)),
      logger_({.service = name, .level_min = settings_.level_min}, &clock_, &sink_) {
  process_.start_seconds.Set(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
}

ServiceBase::~ServiceBase() {
  if (certificate_watch_ != nullptr) certificate_watch_->Stop();
}

absl::StatusOr<std::unique_ptr<ServiceBase>> ServiceBase::Create(const std::string& name,
                                                                 ServerSettings settings) {
  auto base = std::make_unique<ServiceBase>(Private(), name, std::move(settings));
  if (base->settings_.rpc.security != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(base->WatchCertificate(name, base->settings_.rpc.security));
  }
  if (!base->settings_.metrics_listen.empty()) LOCKSTEP_RETURN_IF_ERROR(base->ExposeMetrics());
  return base;
}

rpc::ServerOptions ServiceBase::ServerOptions(std::vector<rpc::AccessRule> access) {
  rpc::ServerOptions options = settings_.rpc;
  options.access = std::move(access);
  options.on_ready = [this](bool ready) { process_.ready.Set(ready ? 1 : 0); };
  options.on_refused = [clock = clock(), logger = logger_,
                        limit = std::make_shared<log::RateLimit>(kRefusalLogPeriod)](
                           absl::string_view method, const absl::Status& why) {
    if (const auto held_back = limit->Pass(clock->Now())) {
      logger.Warning("call_refused",
                     {{"method", method}, {"status", why}, {"held_back", *held_back}});
    }
  };
  return options;
}

absl::StatusOr<std::unique_ptr<rpc::BearerTokens>> ServiceBase::ReadTokens(
    const std::string& directory, std::vector<std::string> roles) const {
  return rpc::BearerTokens::Create({.directory = directory,
                                    .roles = std::move(roles),
                                    .reload = settings_.reload,
                                    .on_error =
                                        [logger = logger_](const absl::Status& error) {
                                          logger.Error("tokens_unread", {{"error", error}});
                                        }},
                                   &clock_);
}

absl::Status ServiceBase::WatchCertificate(const std::string& name,
                                           const std::shared_ptr<const rpc::Security>& security) {
  LOCKSTEP_RETURN_IF_ERROR(security->CheckServes(name));
  certificate_watch_ = std::make_shared<CertificateWatch>(security, &clock_, logger_);
  certificate_watch_->Start(settings_.reload);
  certificates_.emplace(&registry_);
  rpc::CountFailedHandshakes();
  {
    base::MutexLock lock(&handshakes_mutex_);
    handshakes_counted_ = rpc::FailedHandshakes();
  }
  registry_.BeforeText([this, security] {
    CountHandshakes();
    // Of files that cannot be read now, what they said last counts: so it does for connections.
    if (const absl::StatusOr<rpc::CertificateEnds> ends = security->Ends(); ends.ok()) {
      auto& gauges = certificates_->end_seconds;
      gauges[CertificateFile::kCertificate].Set(
          absl::ToDoubleSeconds(ends->certificate - absl::UnixEpoch()));
      gauges[CertificateFile::kAuthorities].Set(
          absl::ToDoubleSeconds(ends->authorities - absl::UnixEpoch()));
    }
  });
  return absl::OkStatus();
}

void ServiceBase::CountHandshakes() {
  base::MutexLock lock(&handshakes_mutex_);
  const int64_t failed = rpc::FailedHandshakes();
  certificates_->handshakes_failed.Increment(static_cast<double>(failed - handshakes_counted_));
  handshakes_counted_ = failed;
}

absl::Status ServiceBase::ExposeMetrics() {
  metrics::Exposer::Options options = {.address = settings_.metrics_listen};
  if (settings_.metrics_tls) {
    LOCKSTEP_ASSIGN_OR_RETURN(identity_,
                              rpc::HttpsIdentity::Create(settings_.rpc.security->files(), &clock_));
    options.identify = [this](ssl_ctx_st* context) { identity_->Install(context); };
  }
  if (!settings_.metrics_tokens_dir.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(scrapers_, ReadTokens(settings_.metrics_tokens_dir, {"scraper"}));
    options.admits = [this](const std::string& token) { return !scrapers_->RoleOf(token).empty(); };
  }
  LOCKSTEP_ASSIGN_OR_RETURN(exposer_, metrics::Exposer::Start(options, registry_));
  return absl::OkStatus();
}

std::string ServiceBase::metrics_address(const std::string& reached_at) const {
  if (exposer_ == nullptr) return "";
  const std::string scheme = settings_.metrics_tls ? "https://" : "";
  if (!settings_.metrics_advertise.empty()) return scheme + settings_.metrics_advertise;
  const auto host_of = [](const std::string& address) {
    return address.substr(0, address.rfind(':'));
  };
  std::string host = host_of(settings_.metrics_listen);
  if (host == "0.0.0.0" || host == "[::]") {
    // What stands before the last slash of a gRPC name is its scheme and authority.
    const std::string last = reached_at.substr(reached_at.rfind('/') + 1);
    if (base::ParseHostPort(last).ok()) host = host_of(last);
  }
  return absl::StrCat(scheme, host, ":", exposer_->port());
}

}  // namespace lockstep::service
