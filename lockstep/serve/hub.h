// Who looks at what: passes messages of a topic on to its viewers. On the thread of the sockets only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lockstep/serve/live.h"

namespace lockstep::serve {

// The receiving end of a stream.
class Viewer {
 public:
  virtual ~Viewer() = default;
  // Bytes for the socket, the same for all viewers. Never waits: whoever cannot keep up is closed.
  virtual void send(const std::shared_ptr<const std::string>& bytes) = 0;
};

class Hub {
 public:
  // Called when the first viewer of a topic comes and when the last one has gone.
  struct Interest {
    std::function<void(const std::string&topic)> begin, end;
  };
  explicit Hub(Interest interest) : interest_(std::move(interest)) {}

  // The viewer gets the newest tick and the end, if there are any, and what came after `place` as far as it is kept.
  void add(const std::string& topic, const std::shared_ptr<Viewer>& viewer, const LivePlace& place);
  void remove(const std::string& topic, Viewer* viewer);
  void publish(const std::string& topic, const LiveMessage& message);
  // A comment to every viewer, so that proxies keep the connection and dead ones are noticed.
  void heartbeat();
  std::size_t viewers() const;

 private:
  struct Kept {
    LiveMessage message;
    std::shared_ptr<const std::string> bytes;
  };
  struct Topic {
    std::map<Viewer*, std::weak_ptr<Viewer>> viewers;
    std::optional<Kept> tick, end;
    std::deque<Kept> events;
    std::size_t event_bytes = 0;
  };
  static void send_all(const Topic& topic, const std::shared_ptr<const std::string>& bytes);

  Interest interest_;
  std::map<std::string, Topic> topics_;
};

// A piece of a chunked body.
std::string chunk(std::string_view text);

}  // namespace lockstep::serve
