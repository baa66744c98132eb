#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/openssl_handles.h"

// Certificates and keys as files hold them. INVALID_ARGUMENT names the file and what is wrong with
// it, here and with what checks them.
namespace lockstep::rpc {

// All certificates of a file in PEM form, at least one, as they stand there.
absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& path);
// The key of a file in PEM form, which has no password.
absl::StatusOr<Key> ReadKey(const std::string& path);

// The same, of the key that belongs to a certificate.
absl::StatusOr<Key> ReadKeyOf(X509* certificate, const std::string& path);

// Whether each of a file's certificates has begun and is not over.
absl::Status CheckDates(const std::string& path, const std::vector<Certificate>& certificates);
// When the first of them ends.
absl::Time EndOf(const std::vector<Certificate>& certificates);

// What a certificate says that its holder is called.
std::vector<std::string> DnsNames(const X509* certificate);

}  // namespace lockstep::rpc
