// A connection as the rest of the server sees it; on the thread of the sockets only.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "lockstep/serve/front.h"
#include "lockstep/serve/hub.h"
#include "lockstep/serve/server.h"
#include "lockstep/serve/workers.h"

namespace lockstep::serve {

class Connection : public Viewer, public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(std::string address) : address_(std::move(address)) {}
  virtual void start() = 0;
  virtual void close() = 0;  // may be called twice

  const std::string& address() const { return address_; }
  double deadline() const { return deadline_; }

 protected:
  std::string address_;
  double deadline_ = 0.0;  // on the monotonic clock; whoever has passed it is closed
};

// All connections that are open, with their limits.
class Connections {
 public:
  explicit Connections(const ServerLimits& limits) : limits_(limits) {}

  // False: there is no room for it, not even after closing the one that has been waiting for a request longest.
  bool add(const std::shared_ptr<Connection>& connection);
  void remove(Connection* connection);
  // It waits for a request from now on, or does not any more.
  void waits(Connection* connection);
  void works(Connection* connection);

  void close_late(double now);
  void close_all();
  std::size_t size() const { return open_.size(); }

 private:
  struct Entry {
    std::shared_ptr<Connection> connection;
    std::list<Connection*>::iterator place;  // in waiting_
    bool waiting = false;
  };
  ServerLimits limits_;
  std::unordered_map<Connection*, Entry> open_;
  std::list<Connection*> waiting_;  // the longest first
  std::map<std::string, std::size_t> by_address_;
};

// What all connections share. Outlives them.
struct Service {
  ServerLimits limits;
  Front& front;
  Connections& connections;
  Hub& hub;
  Workers* workers;  // made after the loop of the sockets
  std::size_t streams = 0;
};

}  // namespace lockstep::serve
