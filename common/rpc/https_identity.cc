#include "common/rpc/https_identity.h"

#include <openssl/ssl.h>

#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace lockstep::rpc {

struct HttpsIdentity::Pair {
  std::vector<Certificate> chain;
  Key key;
};

absl::StatusOr<std::unique_ptr<HttpsIdentity>> HttpsIdentity::Create(TlsFiles files,
                                                                     const base::Clock* clock) {
  auto identity = std::make_unique<HttpsIdentity>(Private(), std::move(files), clock);
  base::MutexLock lock(&identity->mutex_);
  LOCKSTEP_ASSIGN_OR_RETURN(identity->pair_, identity->Read());
  identity->next_look_ = clock->Now() + identity->files_.reload;
  return identity;
}

HttpsIdentity::HttpsIdentity(Private, TlsFiles files, const base::Clock* clock)
    : files_(std::move(files)), clock_(clock) {}

absl::StatusOr<std::shared_ptr<const HttpsIdentity::Pair>> HttpsIdentity::Read() const {
  auto pair = std::make_shared<Pair>();
  LOCKSTEP_ASSIGN_OR_RETURN(pair->chain, ReadCertificates(files_.certificate));
  LOCKSTEP_ASSIGN_OR_RETURN(pair->key, ReadKeyOf(pair->chain[0].get(), files_.key));
  return pair;
}

std::shared_ptr<const HttpsIdentity::Pair> HttpsIdentity::Current() {
  base::MutexLock lock(&mutex_);
  if (const absl::Time now = clock_->Now(); now >= next_look_) {
    next_look_ = now + files_.reload;
    if (auto read = Read(); read.ok()) pair_ = *std::move(read);
  }
  return pair_;
}

void HttpsIdentity::Install(ssl_ctx_st* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  const auto show = [](SSL* connection, void* self) {
    const std::shared_ptr<const Pair> pair = static_cast<HttpsIdentity*>(self)->Current();
    if (SSL_use_certificate(connection, pair->chain[0].get()) != 1 ||
        SSL_use_PrivateKey(connection, pair->key.get()) != 1) {
      return 0;
    }
    for (size_t i = 1; i < pair->chain.size(); ++i) {
      if (SSL_add1_chain_cert(connection, pair->chain[i].get()) != 1) return 0;
    }
    return 1;
  };
  SSL_CTX_set_cert_cb(context, show, this);
}

}  // namespace lockstep::rpc
