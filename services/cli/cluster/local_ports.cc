#include "services/cli/cluster/local_ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace lockstep::cli {
namespace {

// Below Linux's default range of ephemeral ports.
constexpr int kFreePortMin = 15000;
constexpr int kFreePortMax = 32000;
constexpr int kFreePortTriesMax = 10000;

// A socket that holds one port of the loopback as long as it lives.
class HeldPort {
 public:
  HeldPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~HeldPort() { close(fd_); }
  HeldPort(HeldPort&& other) noexcept : fd_(other.fd_), port_(other.port_) { other.fd_ = -1; }
  HeldPort& operator=(HeldPort&&) = delete;

  absl::Status Hold(int port) {
    // Connections of an earlier process that linger must not look like a listener.
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t size = sizeof(address);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd_, raw, size) != 0 || listen(fd_, 1) != 0 || getsockname(fd_, raw, &size) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("port ", port, " of 127.0.0.1: ", std::strerror(errno)));
    }
    port_ = ntohs(address.sin_port);
    return absl::OkStatus();
  }
  int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

}  // namespace

absl::Status CheckPortsFree(const std::vector<int>& ports) {
  for (const int port : ports) {
    HeldPort held;
    LOCKSTEP_RETURN_IF_ERROR(held.Hold(port));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> FreePorts(int count) {
  std::vector<HeldPort> held;
  std::vector<int> ports;
  std::random_device device;
  std::uniform_int_distribution<int> port(kFreePortMin, kFreePortMax);
  for (int tries = 0; static_cast<int>(ports.size()) < count; ++tries) {
    if (tries > kFreePortTriesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", count, " free ports in [", kFreePortMin, ", ", kFreePortMax, "]"));
    }
    HeldPort candidate;
    if (!candidate.Hold(port(device)).ok()) continue;
    ports.push_back(candidate.port());
    held.push_back(std::move(candidate));
  }
  return ports;
}

}  // namespace lockstep::cli
