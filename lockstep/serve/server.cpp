#include "lockstep/serve/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/serve/session.h"

namespace lockstep::serve {
namespace {

constexpr double kSweepSeconds = 0.2;      // between looks at the wish to stop and at the clock
constexpr double kFullSeconds = 0.1;       // before accepting again where no descriptor was left
constexpr rlim_t kOtherDescriptors = 128;  // stores, libraries

// As many descriptors as the system grants; how many of them connections may take.
std::size_t room_for_connections(std::size_t wanted) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  if (files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_NOFILE, &files);
  }
  if (files.rlim_cur <= 2 * kOtherDescriptors) return kOtherDescriptors / 2;
  return std::min<std::size_t>(wanted, files.rlim_cur - kOtherDescriptors);
}

// What a flag of the command line leaves unsafe is not started.
void require_safe(const ServerOptions& options) {
  const bool encrypted = !options.tls_certificate.empty();
  if (encrypted != !options.tls_key.empty()) {
    throw bad_input("a certificate and its key belong together", "give both --tls-cert and --tls-key");
  }
  const auto in_token = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("._~+/=-", c); };
  if (!std::all_of(options.token.begin(), options.token.end(), in_token)) {
    throw bad_input("the token holds other characters than letters, digits and ._~+/=-",
                    "remove the file, and a token is made");
  }
  if (is_loopback_name(options.host)) {
    if (options.behind_proxy && options.token.empty()) {
      throw bad_input("behind a proxy everybody comes from this machine", "give --token-file");
    }
    return;
  }
  if (options.token.empty()) throw bad_input("beyond loopback a token is needed", "give --token-file");
  if (!encrypted && !options.behind_proxy) {
    throw bad_input("beyond loopback the token would cross the network in the clear",
                    "give --tls-cert and --tls-key, or --behind-proxy when a proxy in front does the encryption");
  }
}

asio::ip::address address_of(const std::string& host) {
  error_code error;
  asio::ip::address address = asio::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error) throw bad_input("--host '" + printable(host) + "' is no address", "give one of this machine, or 0.0.0.0");
  return address;
}

std::string plain_text(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

std::unique_ptr<asio::ssl::context> make_tls(const ServerOptions& options) {
  if (options.tls_certificate.empty()) return nullptr;
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                   asio::ssl::context::no_tlsv1_1 | asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3);
  error_code error;
  tls->use_certificate_chain_file(options.tls_certificate.string(), error);
  if (error)
    throw environment_error(printable_path(options.tls_certificate) + ": " + error.message(), "give a PEM file");
  tls->use_private_key_file(options.tls_key.string(), asio::ssl::context::pem, error);
  if (error) throw environment_error(printable_path(options.tls_key) + ": " + error.message(), "give its PEM key");
  return tls;
}

class BeastServer : public Server {
 public:
  explicit BeastServer(const ServerOptions& options)
      : options_(options),
        front_({.token = options.token, .behind_proxy = options.behind_proxy}, options.page, options.dcgm_url),
        connections_(options.limits),
        hub_({.begin = [this](const std::string& topic) { live_->watch(topic); },
              .end = [this](const std::string& topic) { live_->unwatch(topic); }}),
        service_{options.limits, front_, connections_, hub_, nullptr},
        tls_(make_tls(options)),
        acceptor_(loop_),
        sweep_(loop_) {
    listen();
  }

  ~BeastServer() override {
    workers_.reset();  // nothing is posted any more
    live_.reset();
  }

  int port() const override { return acceptor_.local_endpoint().port(); }

  std::string url() const override {
    const asio::ip::address address = acceptor_.local_endpoint().address();
    std::string host = address.is_unspecified() ? telemetry::host_name() : address.to_string();
    if (address.is_v6() && !address.is_unspecified()) host = "[" + host + "]";
    return fmt::format("http{}://{}:{}/", tls_ ? "s" : "", host, port());
  }

  void run(const std::function<bool()>& stop) override {
    workers_ = std::make_unique<Workers>(options_.home, WorkerOptions{});
    service_.workers = workers_.get();
    live_ = std::make_unique<Live>(options_.home, [this](const std::string& topic, LiveMessage message) {
      asio::post(loop_, [this, topic, message = std::move(message)] { hub_.publish(topic, message); });
    });
    accept();
    sweep(stop);
    loop_.run();
  }

 private:
  void listen() {
    const Tcp::endpoint endpoint(address_of(options_.host), static_cast<std::uint16_t>(options_.port));
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      throw environment_error(
          fmt::format("cannot listen on {} port {}: {}", options_.host, options_.port, error.message()),
          "give another --port, or 0 for any that is free");
    }
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, Tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {  // out of descriptors, or a client that left before it was served
        full_.emplace(loop_);
        full_->expires_after(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(kFullSeconds)));
        full_->async_wait([this](error_code stopped) {
          if (!stopped) accept();
        });
        return;
      }
      begin(std::move(socket));
      accept();
    });
  }

  void begin(Tcp::socket socket) {
    error_code gone;
    const std::string address = plain_text(socket.remote_endpoint(gone).address());
    socket.set_option(Tcp::no_delay(true), gone);
    std::shared_ptr<Connection> connection;
    if (tls_) {
      connection = std::make_shared<Session<TlsStream>>(service_, TlsStream(std::move(socket), *tls_), address);
    } else {
      connection = std::make_shared<Session<Tcp::socket>>(service_, std::move(socket), address);
    }
    if (connections_.add(connection)) connection->start();
  }

  void sweep(const std::function<bool()>& stop) {
    sweep_.expires_after(std::chrono::milliseconds(static_cast<int>(kSweepSeconds * 1000)));
    sweep_.async_wait([this, stop](error_code) {
      if (stop()) {
        error_code ignored;
        acceptor_.close(ignored);
        connections_.close_all();
        loop_.stop();
        return;
      }
      const double now = monotonic_seconds();
      connections_.close_late(now);
      if (now - heartbeat_at_ > options_.limits.heartbeat_seconds) {
        heartbeat_at_ = now;
        hub_.heartbeat();
      }
      sweep(stop);
    });
  }

  ServerOptions options_;
  Front front_;
  Connections connections_;
  Hub hub_;
  Service service_;
  std::unique_ptr<asio::ssl::context> tls_;
  asio::io_context loop_{1};  // its handlers own connections, which use all of the above
  Tcp::acceptor acceptor_;
  asio::steady_timer sweep_;
  std::optional<asio::steady_timer> full_;
  double heartbeat_at_ = monotonic_seconds();
  std::unique_ptr<Workers> workers_;  // these post to the loop
  std::unique_ptr<Live> live_;
};

}  // namespace

std::unique_ptr<Server> make_server(const ServerOptions& options) {
  require_safe(options);
  ServerOptions bounded = options;
  bounded.limits.connections = room_for_connections(options.limits.connections);
  return std::make_unique<BeastServer>(bounded);
}

}  // namespace lockstep::serve
