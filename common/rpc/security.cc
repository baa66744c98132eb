#include "common/rpc/security.h"

#include <openssl/x509v3.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/rpc/pem_files.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace lockstep::rpc {
namespace {

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Where a certificate says what it is for, that must be among it.
absl::Status CheckPurpose(const std::string& path, X509* certificate, int purpose,
                          const char* name) {
  if (X509_check_purpose(certificate, purpose, /*ca=*/0) == 1) return absl::OkStatus();
  return Bad(path, absl::StrCat("the certificate's key usage is not for ", name));
}

// gRPC only logs what is wrong with a file, and then fails every handshake.
absl::Status Check(const TlsFiles& files) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto authorities, ReadCertificates(files.authorities));
  // Those that a rotation has not taken out yet may be over.
  const bool any_usable = std::any_of(authorities.begin(), authorities.end(), [](const auto& one) {
    return X509_cmp_current_time(X509_get0_notBefore(one.get())) < 0 &&
           X509_cmp_current_time(X509_get0_notAfter(one.get())) > 0;
  });
  if (!any_usable) LOCKSTEP_RETURN_IF_ERROR(CheckDates(files.authorities, authorities));
  if (files.certificate.empty() && files.key.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const auto chain, ReadCertificates(files.certificate));
  LOCKSTEP_RETURN_IF_ERROR(CheckDates(files.certificate, chain));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckPurpose(files.certificate, chain[0].get(), X509_PURPOSE_SSL_CLIENT, "clients"));
  return ReadKeyOf(chain[0].get(), files.key).status();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Security>> Security::Create(TlsFiles files) {
  LOCKSTEP_RETURN_IF_ERROR(Check(files));
  return std::make_shared<const Security>(Private(), std::move(files));
}

Security::Security(Private, TlsFiles files)
    : files_(std::move(files)),
      provider_(std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files_.key, files_.certificate, files_.authorities,
          static_cast<unsigned int>(std::max<int64_t>(1, absl::ToInt64Seconds(files_.reload))))) {}

absl::Status Security::CheckServes(const std::string& name) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto chain, ReadCertificates(files_.certificate));
  const std::vector<std::string> names = DnsNames(chain[0].get());
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return Bad(files_.certificate,
               absl::StrCat("peers ask for the DNS name \"", name, "\", the certificate has ",
                            names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  return CheckPurpose(files_.certificate, chain[0].get(), X509_PURPOSE_SSL_SERVER, "servers");
}

absl::StatusOr<CertificateEnds> Security::Ends() const {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto chain, ReadCertificates(files_.certificate));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto authorities, ReadCertificates(files_.authorities));
  return CertificateEnds{.certificate = EndOf(chain), .authorities = EndOf(authorities)};
}

std::shared_ptr<grpc::ServerCredentials> Security::ServerCredentials(
    ClientCertificates wanted) const {
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(wanted == ClientCertificates::kRequired
                                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> Security::ChannelCredentials() const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  if (!files_.certificate.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace lockstep::rpc
