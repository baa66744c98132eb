#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

// Owners of OpenSSL's objects.
namespace lockstep::rpc {

template <auto Free>
struct OpenSslDeleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, OpenSslDeleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, OpenSslDeleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, OpenSslDeleter<EVP_PKEY_free>>;

}  // namespace lockstep::rpc
