#include "common/metrics/exposer.h"

#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/metrics/bounded_server.h"
#include "httplib.h"

namespace lockstep::metrics {
namespace {

// More than one, since each may be held by a peer that says little, until its time is over.
constexpr size_t kAnsweringThreads = 8;
constexpr std::chrono::milliseconds kConnectionMax{5000};
constexpr int kUnauthorized = 401;

// Prometheus' format says its version here.
constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

// The default of the library is SO_REUSEPORT, with which a second cluster on the same port would
// start and take half of the scrapes.
void SetSocketOptions(socket_t socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

std::string TokenOf(const httplib::Request& request) {
  const std::string value = request.get_header_value("Authorization");
  const absl::string_view scheme = "Bearer ";
  return absl::StartsWithIgnoreCase(value, scheme) ? value.substr(scheme.size()) : "";
}

std::unique_ptr<BoundedServer> MakeServer(const Exposer::Options& options,
                                          const Registry& registry) {
  SSL_CTX* context = nullptr;
  if (options.identify) {
    context = SSL_CTX_new(TLS_server_method());
    options.identify(context);
  }
  auto server = std::make_unique<BoundedServer>(context, kConnectionMax);
  server->set_socket_options(SetSocketOptions);
  server->new_task_queue = [] {
    return std::make_unique<httplib::ThreadPool>(kAnsweringThreads).release();
  };
  server->Get("/metrics", [admits = options.admits, &registry](const httplib::Request& request,
                                                               httplib::Response& response) {
    if (admits && !admits(TokenOf(request))) {
      response.status = kUnauthorized;
      response.set_header("WWW-Authenticate", "Bearer");
      response.set_content("metrics need the bearer token of a scraper\n", "text/plain");
      return;
    }
    response.set_content(registry.ToText(), kContentType);
  });
  return server;
}

// Whether the server answers, whatever it says.
bool Answers(const std::string& host, int port, bool tls) {
  if (!tls) return static_cast<bool>(httplib::Client(host, port).Get("/metrics"));
  httplib::SSLClient client(host, port);
  // It is this process, whose certificate has another name than the loopback.
  client.enable_server_certificate_verification(false);
  return static_cast<bool>(client.Get("/metrics"));
}

absl::Status CannotListen(const std::string& address) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot serve metrics on ", address,
                   ": the port is in use, or the address is not one of this machine"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Exposer>> Exposer::Start(const Options& options,
                                                        const Registry& registry) {
  const std::string& address = options.address;
  LOCKSTEP_RETURN_IF_ERROR(base::CheckListenAddress("address", address));
  LOCKSTEP_ASSIGN_OR_RETURN(base::HostPort parsed, base::ParseHostPort(address));
  auto& [host, port] = parsed;
  auto server = MakeServer(options, registry);
  if (port == 0) {
    port = server->bind_to_any_port(host);
    if (port <= 0) return CannotListen(address);
  } else if (!server->bind_to_port(host, port)) {
    return CannotListen(address);
  }
  auto exposer = std::make_unique<Exposer>(Private{}, std::move(server), port);
  // stop() has no effect before the listener runs; an answer shows that it does.
  if (!Answers(host, port, options.identify != nullptr)) return CannotListen(address);
  return exposer;
}

Exposer::Exposer(Private, std::unique_ptr<BoundedServer> server, int port)
    : server_(std::move(server)),
      port_(port),
      listener_([this] { server_->listen_after_bind(); }) {}

Exposer::~Exposer() {
  server_->StopReading();
  server_->stop();
  listener_.join();
}

}  // namespace lockstep::metrics
