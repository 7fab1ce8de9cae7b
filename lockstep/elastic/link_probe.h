// The link between two nodes, measured: how long a message takes, how many bytes go through, and how far their clocks
// are apart. One side echoes, the other probes.
#pragma once

#include <memory>
#include <string>

namespace lockstep::elastic {

struct LinkFigures {
  double latency_seconds = 0;       // half of a round trip, median
  double bytes_per_second = 0;      // of one connection
  double clock_offset_seconds = 0;  // the other clock minus this one
};

// Answers probes from a background thread until it is destroyed. Only those who know the token are answered.
class LinkEcho {
 public:
  LinkEcho(const std::string& address, const std::string& token);
  ~LinkEcho();
  LinkEcho(const LinkEcho&) = delete;
  LinkEcho& operator=(const LinkEcho&) = delete;
  int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Throws Fault (timeout, peer lost) when the other side does not answer within `timeout_seconds` in all.
LinkFigures probe_link(const std::string& host, int port, const std::string& token, double timeout_seconds = 30.0);

}  // namespace lockstep::elastic
