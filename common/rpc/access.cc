#include "common/rpc/access.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/rpc/status_conversion.h"
#include "grpc/grpc_security_constants.h"

namespace lockstep::rpc {
namespace {

constexpr absl::string_view kOpenServices[] = {"/grpc.health.v1.Health/", "/grpc.reflection."};

absl::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

}  // namespace

absl::Status CheckAccess(const std::vector<AccessRule>& rules, absl::string_view method,
                         const std::vector<std::string>& caller_roles) {
  for (const absl::string_view open : kOpenServices) {
    if (absl::StartsWith(method, open)) return absl::OkStatus();
  }
  const auto rule = std::find_if(rules.begin(), rules.end(), [method](const AccessRule& candidate) {
    return absl::StartsWith(method, candidate.path);
  });
  if (rule == rules.end()) {
    return absl::PermissionDeniedError(absl::StrCat(method, ": nobody may call this"));
  }
  const bool allowed = std::any_of(caller_roles.begin(), caller_roles.end(), [&](const auto& role) {
    return std::find(rule->roles.begin(), rule->roles.end(), role) != rule->roles.end();
  });
  if (allowed) return absl::OkStatus();
  const std::string wanted = absl::StrJoin(rule->roles, " or ");
  if (caller_roles.empty()) {
    return absl::UnauthenticatedError(
        absl::StrCat(method, ": needs the role ", wanted, ", and no role is known of the caller"));
  }
  return absl::PermissionDeniedError(absl::StrCat(
      method, ": needs the role ", wanted, ", the caller is ", absl::StrJoin(caller_roles, ", ")));
}

AccessControl::AccessControl(std::vector<AccessRule> rules, std::shared_ptr<BearerTokens> tokens,
                             OnRefused on_refused)
    : rules_(std::move(rules)), tokens_(std::move(tokens)), on_refused_(std::move(on_refused)) {}

grpc::Status AccessControl::Process(const InputMetadata& metadata, grpc::AuthContext* context,
                                    OutputMetadata* consumed, OutputMetadata*) {
  const auto path = metadata.find(":path");
  const absl::string_view method = path == metadata.end() ? "" : View(path->second);
  const absl::Status status = Check(method, metadata, *context, consumed);
  if (!status.ok() && on_refused_) on_refused_(method, status);
  return ToGrpcStatus(status);
}

absl::Status AccessControl::Check(absl::string_view method, const InputMetadata& metadata,
                                  const grpc::AuthContext& context,
                                  OutputMetadata* consumed) const {
  std::vector<std::string> roles;
  for (const grpc::string_ref& name : context.FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
    roles.emplace_back(View(name));
  }
  const auto [begin, end] = metadata.equal_range("authorization");
  for (auto entry = begin; entry != end; ++entry) {
    absl::string_view token = View(entry->second);
    if (tokens_ == nullptr || !absl::ConsumePrefix(&token, "Bearer ")) continue;
    std::string role = tokens_->RoleOf(token);
    if (role.empty()) return absl::UnauthenticatedError("the bearer token is nobody's");
    roles.push_back(std::move(role));
    consumed->emplace(std::string(View(entry->first)), std::string(View(entry->second)));
  }
  return CheckAccess(rules_, method, roles);
}

}  // namespace lockstep::rpc
