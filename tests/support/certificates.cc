#include "tests/support/certificates.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/openssl_handles.h"

namespace lockstep::testing {
namespace {

using rpc::Bio;
using rpc::Certificate;
using rpc::Key;

// Of certificates of one authority, which must differ.
std::atomic<int64_t> next_serial = 1;

void AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  LOCKSTEP_CHECK(extension != nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Without an issuer it signs itself.
Certificate Make(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                 const CertificateTerms& terms) {
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate.get()), next_serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), absl::ToInt64Seconds(terms.begin));
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), absl::ToInt64Seconds(terms.end));
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const signer = issuer == nullptr ? certificate.get() : issuer;
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(signer));
  if (issuer == nullptr) {
    AddExtension(certificate.get(), signer, NID_basic_constraints, "critical,CA:TRUE");
  } else {
    AddExtension(certificate.get(), signer, NID_subject_alt_name, absl::StrCat("DNS:", name));
  }
  if (!terms.usage.empty()) {
    AddExtension(certificate.get(), signer, NID_ext_key_usage, terms.usage);
  }
  LOCKSTEP_CHECK(X509_sign(certificate.get(), issuer == nullptr ? key : issuer_key, EVP_sha256()) !=
                 0);
  return certificate;
}

template <typename Writer>
void WritePem(const std::string& path, Writer&& write) {
  const Bio file(BIO_new_file(path.c_str(), "w"));
  LOCKSTEP_CHECK(file != nullptr) << path;
  LOCKSTEP_CHECK_EQ(write(file.get()), 1) << path;
}

}  // namespace

struct CertificateAuthority::Impl {
  Key key = Key(EVP_EC_gen("P-256"));
  Certificate certificate;
};

CertificateAuthority::CertificateAuthority(std::string directory, std::string name,
                                           absl::Duration life)
    : directory_(std::move(directory)), name_(std::move(name)), impl_(std::make_unique<Impl>()) {
  impl_->certificate = Make(name_, impl_->key.get(), nullptr, nullptr, {.end = life});
  WritePem(path(), [&](BIO* file) { return PEM_write_bio_X509(file, impl_->certificate.get()); });
}

CertificateAuthority::~CertificateAuthority() = default;

void CertificateAuthority::Issue(const std::string& file, const std::string& name,
                                 const CertificateTerms& terms) {
  const Key own(EVP_EC_gen("P-256"));
  const Certificate issued =
      Make(name, own.get(), impl_->certificate.get(), impl_->key.get(), terms);
  WritePem(certificate(file), [&](BIO* out) { return PEM_write_bio_X509(out, issued.get()); });
  WritePem(key(file), [&](BIO* out) {
    return PEM_write_bio_PrivateKey(out, own.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

std::string CertificateAuthority::path() const {
  return absl::StrCat(directory_, "/", name_, ".pem");
}
std::string CertificateAuthority::certificate(const std::string& file) const {
  return absl::StrCat(directory_, "/", file, ".pem");
}
std::string CertificateAuthority::key(const std::string& file) const {
  return absl::StrCat(directory_, "/", file, ".key");
}

}  // namespace lockstep::testing
