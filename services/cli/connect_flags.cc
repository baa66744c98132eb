#include "services/cli/connect_flags.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "services/cli/files.h"

namespace lockstep::cli {
namespace {

constexpr size_t kTokenBytesMax = size_t{1} << 16;

}  // namespace

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kTokenBytesMax));
  const std::string token(absl::StripAsciiWhitespace(text));
  if (token.empty() || token.find_first_of(" \n") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected one token"));
  }
  return token;
}

void ConnectFlags::AddTo(Flags* flags) {
  flags->Add("target", &target, "host:port of the gateway");
  flags->Add("timeout", &timeout, {kWaitMin, kWaitMax}, "longest wait for one call");
  flags->Add("authorities", &authorities,
             "PEM file of those who may sign the server's certificate; without it: plaintext");
  flags->Add("certificate", &certificate, "PEM file of the caller's own certificate, with --key");
  flags->Add("key", &key, "PEM file of its key");
  flags->Add("server_name", &server_name,
             "name in the server's certificate, where it is not the target's");
  flags->Add("token_file", &token_file, "file with the caller's bearer token");
}

absl::StatusOr<rpc::ChannelOptions> ConnectFlags::Channel() const {
  LOCKSTEP_RETURN_IF_ERROR(base::CheckTarget("--target", target));
  // A client's answers may be large, and its gateways many.
  rpc::ChannelOptions options = client::RolloutClient::Options().channel;
  if (authorities.empty()) {
    for (const std::string* other : {&certificate, &key, &server_name, &token_file}) {
      if (other->empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "--authorities: needed with --certificate, --key, --server_name or --token_file"));
    }
    return options;
  }
  if (certificate.empty() != key.empty()) {
    return absl::InvalidArgumentError("--certificate and --key go together");
  }
  for (const std::string* file : {&authorities, &certificate, &key}) {
    if (!file->empty()) LOCKSTEP_RETURN_IF_ERROR(CheckRegularFile(*file));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.security,
      rpc::Security::Create({.certificate = certificate, .key = key, .authorities = authorities}));
  options.peer_name = server_name;
  if (!token_file.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(options.bearer_token, ReadToken(token_file));
  }
  return options;
}

absl::StatusOr<client::RolloutClient::Options> ConnectFlags::Options() const {
  client::RolloutClient::Options options = {.target = target, .timeout = timeout};
  LOCKSTEP_ASSIGN_OR_RETURN(options.channel, Channel());
  return options;
}

}  // namespace lockstep::cli
