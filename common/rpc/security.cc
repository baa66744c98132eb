#include "common/rpc/security.h"

#include <openssl/pem.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/openssl_handles.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace lockstep::rpc {
namespace {

absl::Status Bad(const std::string& path, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<Bio> Open(const std::string& path) {
  // OpenSSL opens it, and finds nothing in it.
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    return Bad(path, "is a directory, not a file in PEM form");
  }
  Bio file(BIO_new_file(path.c_str(), "r"));
  if (file == nullptr) return Bad(path, "cannot be opened");
  return file;
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Bio file, Open(path));
  Certificate certificate(PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return Bad(path, "holds no certificate in PEM form");
  if (X509_cmp_current_time(X509_get0_notBefore(certificate.get())) >= 0) {
    return Bad(path, "the certificate has not begun");
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) <= 0) {
    return Bad(path, "the certificate is over");
  }
  return certificate;
}

absl::Status CheckKey(const std::string& path, X509* certificate) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Bio file, Open(path));
  // A key with a password would ask for it on the terminal; an empty one makes that an error.
  const Key key(PEM_read_bio_PrivateKey(file.get(), nullptr, nullptr, const_cast<char*>("")));
  if (key == nullptr) return Bad(path, "holds no key in PEM form without a password");
  if (X509_check_private_key(certificate, key.get()) != 1) {
    return Bad(path, "is the key of another certificate");
  }
  return absl::OkStatus();
}

// gRPC only logs what is wrong with a file, and then fails every handshake.
absl::Status Check(const TlsFiles& files) {
  LOCKSTEP_RETURN_IF_ERROR(ReadCertificate(files.authorities).status());
  if (files.certificate.empty() && files.key.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(files.certificate));
  return CheckKey(files.key, certificate.get());
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Security>> Security::Create(TlsFiles files) {
  LOCKSTEP_RETURN_IF_ERROR(Check(files));
  return std::make_shared<const Security>(Private(), std::move(files));
}

Security::Security(Private, TlsFiles files)
    : has_certificate_(!files.certificate.empty()),
      provider_(std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key, files.certificate, files.authorities,
          static_cast<unsigned int>(std::max<int64_t>(1, absl::ToInt64Seconds(files.reload))))) {}

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
  if (has_certificate_) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace lockstep::rpc
