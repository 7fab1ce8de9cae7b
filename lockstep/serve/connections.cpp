#include <vector>

#include "lockstep/serve/connection.h"
#include "lockstep/serve/guard.h"

namespace lockstep::serve {

bool Connections::add(const std::shared_ptr<Connection>& connection) {
  const std::string& address = connection->address();
  // All of a proxy's and of this machine's connections have one address.
  const auto same = by_address_.find(address);
  const std::size_t others = same == by_address_.end() ? 0 : same->second;
  if (!is_loopback_name(address) && others >= limits_.connections_per_address) return false;
  if (open_.size() >= limits_.connections) {
    if (waiting_.empty()) return false;
    waiting_.front()->close();
  }
  open_[connection.get()] = {connection, waiting_.end(), false};
  ++by_address_[address];
  return true;
}

void Connections::remove(Connection* connection) {
  const auto found = open_.find(connection);
  if (found == open_.end()) return;
  if (found->second.waiting) waiting_.erase(found->second.place);
  if (const auto count = by_address_.find(connection->address()); count != by_address_.end() && --count->second == 0) {
    by_address_.erase(count);
  }
  const std::shared_ptr<Connection> last = std::move(found->second.connection);  // it may be the last owner
  open_.erase(found);
}

void Connections::waits(Connection* connection) {
  const auto found = open_.find(connection);
  if (found == open_.end() || found->second.waiting) return;
  found->second.place = waiting_.insert(waiting_.end(), connection);
  found->second.waiting = true;
}

void Connections::works(Connection* connection) {
  const auto found = open_.find(connection);
  if (found == open_.end() || !found->second.waiting) return;
  waiting_.erase(found->second.place);
  found->second.waiting = false;
}

void Connections::close_late(double now) {
  std::vector<std::shared_ptr<Connection>> late;
  for (const auto& [key, entry] : open_) {
    if (entry.connection->deadline() < now) late.push_back(entry.connection);
  }
  for (const auto& connection : late) connection->close();
}

void Connections::close_all() {
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [key, entry] : open_) all.push_back(entry.connection);
  for (const auto& connection : all) connection->close();
}

}  // namespace lockstep::serve
