#include "common/rpc/pem_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace lockstep::rpc {
namespace {

using GeneralNames = std::unique_ptr<GENERAL_NAMES, OpenSslDeleter<GENERAL_NAMES_free>>;

absl::Status Bad(const std::string& path, const std::string& what) {
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

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string Text(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::vector<Certificate>> ReadCertificates(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Bio file, Open(path));
  std::vector<Certificate> certificates;
  while (X509* next = PEM_read_bio_X509(file.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  // Others would take what stays there for an error of theirs.
  ERR_clear_error();
  if (!at_end) return Bad(path, "holds a certificate that cannot be read");
  if (certificates.empty()) return Bad(path, "holds no certificate in PEM form");
  return certificates;
}

absl::StatusOr<Key> ReadKey(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Bio file, Open(path));
  // A key with a password would ask for it on the terminal; an empty one makes that an error.
  Key key(PEM_read_bio_PrivateKey(file.get(), nullptr, nullptr, const_cast<char*>("")));
  ERR_clear_error();
  if (key == nullptr) return Bad(path, "holds no key in PEM form without a password");
  return key;
}

absl::StatusOr<Key> ReadKeyOf(X509* certificate, const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(Key key, ReadKey(path));
  const bool belongs = X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  if (!belongs) return Bad(path, "is the key of another certificate");
  return key;
}

absl::Status CheckDates(const std::string& path, const std::vector<Certificate>& certificates) {
  const absl::Time now = absl::Now();
  for (const Certificate& certificate : certificates) {
    const absl::Time begin = TimeOf(X509_get0_notBefore(certificate.get()));
    const absl::Time end = TimeOf(X509_get0_notAfter(certificate.get()));
    if (now < begin) {
      return Bad(path, absl::StrCat("the certificate has not begun: it does at ", Text(begin),
                                    ", now is ", Text(now)));
    }
    if (now >= end) {
      return Bad(path, absl::StrCat("the certificate is over: it ended at ", Text(end), ", now is ",
                                    Text(now)));
    }
  }
  return absl::OkStatus();
}

absl::Time EndOf(const std::vector<Certificate>& certificates) {
  absl::Time end = absl::InfiniteFuture();
  for (const Certificate& certificate : certificates) {
    end = std::min(end, TimeOf(X509_get0_notAfter(certificate.get())));
  }
  return end;
}

std::vector<std::string> DnsNames(const X509* certificate) {
  std::vector<std::string> found;
  const GeneralNames names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS) continue;
    found.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                       static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
  }
  return found;
}

}  // namespace lockstep::rpc
