#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/rpc/bearer_tokens.h"
#include "grpcpp/security/auth_metadata_processor.h"

namespace lockstep::rpc {

// Who may call the methods whose path ("/package.Service/Method") begins with `path`: callers with
// one of `roles`. A caller has the role of its bearer token, and each DNS name in its certificate
// is one.
struct AccessRule {
  std::string path;
  std::vector<std::string> roles;
};

// Told of each call that was refused, before its handler was reached. Must not block; any thread.
using OnRefused = std::function<void(absl::string_view method, const absl::Status& why)>;

// Decides by the first rule whose path fits; a method without a rule is nobody's. Health and
// reflection are everybody's who could connect.
//
// UNAUTHENTICATED: no role is known of the caller. PERMISSION_DENIED: another one is needed.
absl::Status CheckAccess(const std::vector<AccessRule>& rules, absl::string_view method,
                         const std::vector<std::string>& caller_roles);

// The same as gRPC asks it, before a call reaches its handler. Thread-safe, does not block.
class AccessControl final : public grpc::AuthMetadataProcessor {
 public:
  // Without `tokens`, certificates alone count. `on_refused` may be empty.
  AccessControl(std::vector<AccessRule> rules, std::shared_ptr<BearerTokens> tokens,
                OnRefused on_refused);

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  absl::Status Check(absl::string_view method, const InputMetadata& metadata,
                     const grpc::AuthContext& context, OutputMetadata* consumed) const;

  const std::vector<AccessRule> rules_;
  const std::shared_ptr<BearerTokens> tokens_;
  const OnRefused on_refused_;
};

}  // namespace lockstep::rpc
