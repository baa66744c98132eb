#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace lockstep::testing {

// A certificate authority of a test, and what it signs: PEM files in `directory`, which exists.
class CertificateAuthority {
 public:
  // Writes `directory`/`name`.pem.
  explicit CertificateAuthority(std::string directory, std::string name = "authorities");
  ~CertificateAuthority();

  // Writes `directory`/`file`.pem and .key: a certificate with the DNS name `name`, and its key.
  // Valid from an hour ago for so long from now.
  void Issue(const std::string& file, const std::string& name,
             absl::Duration valid = absl::Hours(24));

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
