#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace lockstep::testing {

// From when to when, counted from now, and for what: OpenSSL's extendedKeyUsage, or everything.
struct CertificateTerms {
  absl::Duration begin = -absl::Hours(1);
  absl::Duration end = absl::Hours(24);
  std::string usage;
};

// A certificate authority of a test, and what it signs: PEM files in `directory`, which exists.
class CertificateAuthority {
 public:
  // Writes `directory`/`name`.pem, which is good for `life` from now.
  explicit CertificateAuthority(std::string directory, std::string name = "authorities",
                                absl::Duration life = absl::Hours(24));
  ~CertificateAuthority();

  // Writes `directory`/`file`.pem and .key: a certificate with the DNS name `name`, and its key.
  void Issue(const std::string& file, const std::string& name, const CertificateTerms& terms = {});

  std::string path() const;  // Of the authority's own certificate.
  std::string certificate(const std::string& file) const;
  std::string key(const std::string& file) const;

 private:
  struct Impl;

  const std::string directory_;
  const std::string name_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::testing
