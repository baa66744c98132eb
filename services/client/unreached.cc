#include "services/client/unreached.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep::client {
namespace {

// How gRPC begins to say that no address of a name took a connection, by its two policies.
constexpr absl::string_view kNoConnection[] = {
    "connections to all backends failing",
    "failed to connect to all addresses",
};

constexpr absl::string_view kOtherName = "Hostname Verification Check failed";
constexpr absl::string_view kNotVerified = "certificate verify failed";
constexpr absl::string_view kNoTls = "wrong version number";
// Of a server with TLS that hears plaintext or meets a certificate that it does not take, but also
// of one that ends just then.
constexpr absl::string_view kClosed = "Socket closed";

bool Has(const absl::Status& status, absl::string_view words) {
  return absl::StrContains(status.message(), words);
}

bool NoConnection(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return false;
  for (const absl::string_view words : kNoConnection) {
    if (absl::StartsWith(status.message(), words)) return true;
  }
  return false;
}

std::string HintOf(const absl::Status& status, const rpc::ChannelOptions& channel) {
  if (!NoConnection(status)) return "";
  if (Has(status, kOtherName)) {
    const std::string name = channel.peer_name.empty()
                                 ? std::string("the target's name, and no other was given")
                                 : absl::StrCat("the name \"", channel.peer_name, "\"");
    return absl::StrCat("the server's certificate is not for ", name);
  }
  if (Has(status, kNotVerified)) {
    return "the server's certificate is of none of the authorities given, or is not valid now";
  }
  if (Has(status, kNoTls)) return "the server speaks without TLS, and authorities were given";
  if (!Has(status, kClosed)) return "";
  if (channel.security == nullptr) {
    return "the server may want TLS, and no authorities were given";
  }
  return "the server may not take the certificate given, or the lack of one";
}

}  // namespace

bool IsSetDifferently(const absl::Status& status) {
  return NoConnection(status) &&
         (Has(status, kOtherName) || Has(status, kNotVerified) || Has(status, kNoTls));
}

absl::Status WithAttempts(const absl::Status& status, const std::string& target,
                          const rpc::ChannelOptions& channel, const Attempts& attempts) {
  if (!absl::IsUnavailable(status) && !absl::IsCancelled(status) &&
      !absl::IsDeadlineExceeded(status)) {
    return status;
  }
  const std::string tried = attempts.count == 1 ? "once" : absl::StrCat(attempts.count, " times");
  const std::string hint = HintOf(status, channel);
  absl::Status told(status.code(),
                    absl::StrCat(target, " was tried ", tried, ", for ",
                                 absl::StrFormat("%.1f s", absl::ToDoubleSeconds(attempts.time)),
                                 ": ", hint, hint.empty() ? "" : ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

}  // namespace lockstep::client
