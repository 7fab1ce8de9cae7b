// Link: the connection between two agents. One JSON object per line in both directions, never blocking.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/elastic/poller.h"

namespace lockstep::elastic {

// How long the other machine may leave unanswered what was sent to it. Only machines are judged by this: kernels
// answer, however busy the processes are.
inline constexpr double kAnswerSeconds = 0.7;

class Link {
 public:
  // A connection that was accepted, or one that begin_to_connect() began.
  Link(UniqueFd fd, bool connecting);

  void send(const nlohmann::json& message);
  void watch(Poller& poller);
  // What came since the last call; only what is before and with the first message of type `until`, where one is given.
  std::vector<nlohmann::json> take(const std::string& until = "");

  bool is_open() const { return static_cast<bool>(fd_); }
  bool is_connected() const { return is_open() && !connecting_; }
  // Closes the link when the other machine has not answered for kAnswerSeconds. Call it a few times in that time. While
  // this process (or its whole machine) did not run, nothing is counted: answers may have come that nobody looked at.
  void require_answers(double now);
  // It closed for that, not because the other end closed it.
  bool was_silent() const { return silent_; }

  // The other machine said that nobody listens: the agent there is not running.
  bool was_refused() const { return refused_; }
  double heard() const { return heard_; }            // when something came last
  double opened() const { return opened_; }          // when it began
  const std::string& peer() const { return peer_; }  // numeric address of who connected to us
  // Waits until everything is sent, at most `seconds`.
  void flush(double seconds);
  void close() { fd_.reset(); }

 private:
  void on_event();
  void read();
  void write();
  void fail(ssize_t result);

  UniqueFd fd_;
  bool connecting_;
  bool refused_ = false, silent_ = false;
  double opened_, heard_;
  double checked_;           // last, by require_answers()
  double unanswered_ = 0.0;  // seconds
  std::string peer_;
  std::string in_, out_;
  std::vector<nlohmann::json> messages_;
};

}  // namespace lockstep::elastic
