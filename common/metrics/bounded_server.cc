#include "common/metrics/bounded_server.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>

namespace lockstep::metrics {
namespace {

using Clock = std::chrono::steady_clock;

// A connection until a point in time. Behind that, all fails.
class BoundedStream final : public httplib::Stream {
 public:
  // Owns the socket.
  BoundedStream(socket_t socket, SSL_CTX* context, Clock::time_point end)
      : socket_(socket), end_(end), tls_(nullptr, &SSL_free) {
    fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
    if (context == nullptr) return;
    tls_.reset(SSL_new(context));
    SSL_set_fd(tls_.get(), socket_);
  }
  ~BoundedStream() override {
    if (tls_ != nullptr) SSL_shutdown(tls_.get());
    shutdown(socket_, SHUT_RDWR);
    close(socket_);
  }

  bool Handshake() {
    return tls_ == nullptr || UntilDone(POLLIN, [this] { return SSL_accept(tls_.get()); }) == 1;
  }

  bool is_readable() const override { return Clock::now() < end_; }
  bool is_writable() const override { return Clock::now() < end_; }
  ssize_t read(char* bytes, size_t size) override {
    const int most = static_cast<int>(std::min<size_t>(size, 1 << 20));
    return UntilDone(POLLIN, [&] {
      return tls_ != nullptr ? SSL_read(tls_.get(), bytes, most)
                             : static_cast<int>(recv(socket_, bytes, most, 0));
    });
  }
  ssize_t write(const char* bytes, size_t size) override {
    const int most = static_cast<int>(std::min<size_t>(size, 1 << 20));
    return UntilDone(POLLOUT, [&] {
      return tls_ != nullptr ? SSL_write(tls_.get(), bytes, most)
                             : static_cast<int>(send(socket_, bytes, most, MSG_NOSIGNAL));
    });
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    AddressOf(&getpeername, ip, port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    AddressOf(&getsockname, ip, port);
  }
  socket_t socket() const override { return socket_; }

 private:
  // What `operation` gives once the socket lets it; -1 when it fails or time is over. In plaintext
  // it waits for `event`; TLS says itself for what.
  template <typename Operation>
  int UntilDone(short event, const Operation& operation) {
    while (true) {
      ERR_clear_error();
      const int done = operation();
      if (done > 0) return done;
      const short wanted = WantedAfter(done, event);
      if (wanted == 0) return done;
      if (!Await(wanted)) return -1;
    }
  }

  // The event to wait for before another try; 0 when none would help.
  short WantedAfter(int done, short event) const {
    if (tls_ == nullptr) return done < 0 && (errno == EAGAIN || errno == EINTR) ? event : 0;
    const int error = SSL_get_error(tls_.get(), done);
    return error == SSL_ERROR_WANT_READ ? POLLIN : error == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
  }

  bool Await(short wanted) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
    pollfd poll_of = {.fd = socket_, .events = wanted, .revents = 0};
    return left.count() > 0 && poll(&poll_of, 1, static_cast<int>(left.count())) > 0;
  }

  template <typename NameOf>
  void AddressOf(NameOf name_of, std::string& ip, int& port) const {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    char host[NI_MAXHOST];
    char service[NI_MAXSERV];
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (name_of(socket_, any, &length) != 0 ||
        getnameinfo(any, length, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      return;
    }
    ip = host;
    port = std::atoi(service);
  }

  const socket_t socket_;
  const Clock::time_point end_;
  std::unique_ptr<SSL, decltype(&SSL_free)> tls_;
};

}  // namespace

void BoundedServer::StopReading() {
  base::MutexLock lock(&mutex_);
  reads_ = false;
  for (const socket_t socket : open_) shutdown(socket, SHUT_RD);
}

bool BoundedServer::process_and_close_socket(socket_t socket) {
  BoundedStream stream(socket, context_.get(), Clock::now() + connection_max_);
  {
    base::MutexLock lock(&mutex_);
    if (!reads_) return false;
    open_.insert(socket);
  }
  bool closed = false;
  const bool answered =
      stream.Handshake() && process_request(stream, /*close_connection=*/true, closed, nullptr);
  base::MutexLock lock(&mutex_);
  open_.erase(socket);
  return answered;
}

}  // namespace lockstep::metrics
