// `lockstep serve`: the page, the API and live streams over HTTP (docs/reference/http-api.md).
//
// One thread serves all sockets without ever waiting for one of them; the stores are asked by a few others. So ten
// thousand slow connections cost memory (a few kilobytes each) and no threads.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::serve {

struct ServerLimits {
  std::size_t connections = 4096;             // beyond it the one that has been silent longest is closed
  std::size_t connections_per_address = 256;  // of addresses that are not loopback
  std::size_t streams = 1024;
  std::size_t header_bytes = 16 << 10, body_bytes = 64 << 10;
  std::size_t queued_bytes = 128 << 10;  // of a stream whose viewer does not read; then it is closed
  double request_seconds = 10.0;         // from the first wait to the last byte of a request
  double idle_seconds = 60.0;            // between requests
  double answer_seconds = 60.0;          // for the store to answer and the client to read it
  double heartbeat_seconds = 15.0;       // of streams
};

struct ServerOptions {
  std::filesystem::path home;  // of the run store
  std::string host = "127.0.0.1";
  int port = 8642;    // 0: any that is free
  std::string token;  // "": none is asked for; loopback only
  bool behind_proxy = false;
  std::filesystem::path tls_certificate, tls_key;  // PEM; "": plain HTTP
  std::filesystem::path page;                      // a built page instead of the one inside the program
  std::string dcgm_url;                            // of a DCGM exporter; "": none
  ServerLimits limits;
};

class Server {
 public:
  virtual ~Server() = default;
  virtual int port() const = 0;
  virtual std::string url() const = 0;  // "http://127.0.0.1:8642/"
  // Serves until `stop` says so; it is asked about five times a second. Once.
  virtual void run(const std::function<bool()>& stop) = 0;
};

// Bound and listening when it returns. Throws UserError: bad input for a host, certificate or combination that is not
// safe, environment when the port is taken or this build has no server.
std::unique_ptr<Server> make_server(const ServerOptions& options);

}  // namespace lockstep::serve
