#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"

namespace lockstep::rpc {

// PEM files of a process. They may be replaced while it runs: connections that are made later use
// what they hold by then. Replace key and certificate together (a link to a directory, as
// Kubernetes does for Secrets), since a pair that does not match is passed over.
struct TlsFiles {
  // This process's certificate, then those that lead to an authority. Empty, together with `key`,
  // for a client that has none.
  std::string certificate;
  std::string key;
  // The authorities that sign certificates of peers.
  std::string authorities;
  // Between looks at the files, at least 1 s; whole seconds.
  absl::Duration reload = absl::Seconds(10);
};

// Whether a server asks its clients for certificates. One that is shown is always verified.
enum class ClientCertificates { kRequired, kOptional };

// When the first certificate of a file ends.
struct CertificateEnds {
  absl::Time certificate;
  absl::Time authorities;
};

// How the connections of a process are protected: TLS, with certificates on both sides inside a
// cluster. Immutable and thread-safe; a process has one, which its server and channels share.
// Where there is none, connections are plaintext and callers are not known.
class Security {
  struct Private {};

 public:
  // INVALID_ARGUMENT names the file that cannot be read or is not what it should be: no PEM, a key
  // of another certificate, a certificate that is over, has not begun or is not for clients. Of the
  // authorities one must be valid.
  static absl::StatusOr<std::shared_ptr<const Security>> Create(TlsFiles files);
  // For Create().
  Security(Private, TlsFiles files);

  // Whether a server can have the certificate that peers, who know it as `name`, ask for. By that
  // name they know their callers too. INVALID_ARGUMENT names the file and the names that are there.
  absl::Status CheckServes(const std::string& name) const;
  const TlsFiles& files() const { return files_; }
  // As the files say now; needs a certificate.
  absl::StatusOr<CertificateEnds> Ends() const;

  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(ClientCertificates wanted) const;
  // The peer's certificate must have its target's name, or the one that the channel expects.
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials() const;

 private:
  const TlsFiles files_;
  const std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
};

}  // namespace lockstep::rpc
