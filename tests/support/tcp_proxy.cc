#include "tests/support/tcp_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lockstep::testing {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr absl::Duration kTricklePause = absl::Seconds(1);
constexpr int kTrickleWaitMs = 50;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&&) = delete;
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

void MakeFast(const Fd& socket) {
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
}

// One direction of a connection: what was read and not yet written.
struct Flow {
  std::string pending;
  bool ended = false;  // The reading end saw the end of its peer.

  // Passes on at most `bytes_max`. False when the connection is over.
  bool Move(const Fd& from, const Fd& to, size_t bytes_max = kReadBytes) {
    if (pending.empty() && !ended) {
      char buffer[kReadBytes];
      const ssize_t size = recv(from.get(), buffer, sizeof(buffer), 0);
      if (size < 0) return errno == EAGAIN || errno == EINTR;
      if (size == 0) {
        ended = true;
        shutdown(to.get(), SHUT_WR);
      }
      pending.assign(buffer, static_cast<size_t>(size));
    }
    if (pending.empty() || bytes_max == 0) return true;
    const ssize_t sent =
        send(to.get(), pending.data(), std::min(bytes_max, pending.size()), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    pending.erase(0, static_cast<size_t>(sent));
    return true;
  }
};

struct Connection {
  Fd near;  // Accepted.
  Fd far;   // Opened to the target.
  Flow to_far;
  Flow to_near;
  absl::Time next_byte = absl::InfinitePast();  // Of a trickle to `near`.

  // How much may go to `near` at `now`.
  size_t Allowance(bool trickle, absl::Time now) {
    if (!trickle) return kReadBytes;
    if (to_near.pending.empty() || now < next_byte) return 0;
    next_byte = now + kTricklePause;
    return 1;
  }
  bool ended() const { return to_far.ended && to_near.ended; }
  // The peers see an error at once, not an end in good order.
  void Reset() const {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(near.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    setsockopt(far.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
};

short Interest(const Flow& in, const Flow& out, bool may_write) {
  short events = 0;
  if (in.pending.empty() && !in.ended) events |= POLLIN;
  if (!out.pending.empty() && may_write) events |= POLLOUT;
  return events;
}

}  // namespace

class TcpProxy::Impl {
 public:
  Impl(Fd listener, int port, int target_port)
      : listener_(std::move(listener)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        port_(port),
        target_port_(target_port),
        thread_([this] { Run(); }) {}
  ~Impl() {
    stopping_ = true;
    Wake();
    thread_.join();
  }

  int port() const { return port_; }
  void SetBlackHole(bool on) {
    black_hole_ = on;
    Wake();
  }
  void SetTrickle(bool on) {
    trickle_ = on;
    Wake();
  }
  void Cut() {
    cut_ = true;
    Wake();
  }

 private:
  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }

  void Accept() {
    Fd near(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (near.get() < 0) return;
    Fd far(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in target = Loopback(target_port_);
    // On the loopback this is answered at once, one way or the other.
    if (connect(far.get(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0) return;
    MakeFast(near);
    MakeFast(far);
    connections_.push_back({std::move(near), std::move(far), {}, {}});
  }

  void Run() {
    while (!stopping_) {
      const bool silent = black_hole_;
      const bool trickle = trickle_;
      std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
      if (!silent) {
        waits.push_back({listener_.get(), POLLIN, 0});
        for (const Connection& c : connections_) {
          waits.push_back({c.near.get(), Interest(c.to_far, c.to_near, !trickle), 0});
          waits.push_back({c.far.get(), Interest(c.to_near, c.to_far, true), 0});
        }
      }
      poll(waits.data(), waits.size(), trickle ? kTrickleWaitMs : -1);
      uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t size = read(wake_.get(), &wakes, sizeof(wakes));
      if (cut_.exchange(false)) {
        for (const Connection& c : connections_) c.Reset();
        connections_.clear();
        continue;
      }
      if (silent || black_hole_) continue;
      const absl::Time now = absl::Now();
      connections_.remove_if([&](Connection& c) {
        return !c.to_far.Move(c.near, c.far) ||
               !c.to_near.Move(c.far, c.near, c.Allowance(trickle, now)) || c.ended();
      });
      if (waits[1].revents != 0) Accept();
    }
  }

  const Fd listener_;
  const Fd wake_;
  const int port_;
  const int target_port_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> black_hole_ = false;
  std::atomic<bool> trickle_ = false;
  std::atomic<bool> cut_ = false;
  std::list<Connection> connections_;  // Of the thread.
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<TcpProxy>> TcpProxy::Start(int target_port) {
  Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::UnavailableError(absl::StrCat("no port for a proxy: ", std::strerror(errno)));
  }
  return std::unique_ptr<TcpProxy>(new TcpProxy(
      std::make_unique<Impl>(std::move(listener), ntohs(address.sin_port), target_port)));
}

TcpProxy::TcpProxy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpProxy::~TcpProxy() = default;

int TcpProxy::port() const { return impl_->port(); }
void TcpProxy::SetBlackHole(bool on) { impl_->SetBlackHole(on); }
void TcpProxy::SetTrickle(bool on) { impl_->SetTrickle(on); }
void TcpProxy::Cut() { impl_->Cut(); }

}  // namespace lockstep::testing
