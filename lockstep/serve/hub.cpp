#include "lockstep/serve/hub.h"

#include <fmt/format.h>

#include <vector>

namespace lockstep::serve {
namespace {

constexpr std::size_t kKeptEvents = 256;
constexpr std::size_t kKeptEventBytes = 64 << 10;  // who comes back must be able to take them at once

}  // namespace

std::string chunk(std::string_view text) { return fmt::format("{:x}\r\n{}\r\n", text.size(), text); }

void Hub::add(const std::string& name, const std::shared_ptr<Viewer>& viewer, const LivePlace& place) {
  Topic& topic = topics_[name];
  const bool first = topic.viewers.empty();
  topic.viewers[viewer.get()] = viewer;
  if (first) interest_.begin(name);
  // Gathered first: a viewer that cannot take all of it leaves, and the topic with it.
  std::vector<std::shared_ptr<const std::string>> missed;
  if (place.time_ms >= 0) {
    for (const Kept& event : topic.events) {
      if (event.message.time_ms > place.time_ms) missed.push_back(event.bytes);
    }
  }
  if (topic.tick && topic.tick->message.step > place.step) missed.push_back(topic.tick->bytes);
  if (topic.end) missed.push_back(topic.end->bytes);
  for (const auto& bytes : missed) viewer->send(bytes);
}

void Hub::remove(const std::string& name, Viewer* viewer) {
  const auto topic = topics_.find(name);
  if (topic == topics_.end() || topic->second.viewers.erase(viewer) == 0 || !topic->second.viewers.empty()) return;
  topics_.erase(topic);
  interest_.end(name);
}

// A viewer that cannot keep up removes itself while it is sent to.
void Hub::send_all(const Topic& topic, const std::shared_ptr<const std::string>& bytes) {
  std::vector<std::shared_ptr<Viewer>> viewers;
  for (const auto& [address, weak] : topic.viewers) {
    if (auto viewer = weak.lock()) viewers.push_back(std::move(viewer));
  }
  for (const auto& viewer : viewers) viewer->send(bytes);
}

void Hub::publish(const std::string& name, const LiveMessage& message) {
  const auto found = topics_.find(name);
  if (found == topics_.end()) return;
  Topic& topic = found->second;
  const Kept kept{message, std::make_shared<const std::string>(chunk(message.text()))};
  switch (message.kind) {
    case LiveMessage::Kind::kTick:
      topic.tick = kept;
      topic.end.reset();  // it goes on
      break;
    case LiveMessage::Kind::kEvent:
      topic.events.push_back(kept);
      topic.event_bytes += kept.bytes->size();
      while (topic.events.size() > kKeptEvents || topic.event_bytes > kKeptEventBytes) {
        topic.event_bytes -= topic.events.front().bytes->size();
        topic.events.pop_front();
      }
      break;
    case LiveMessage::Kind::kEnd:
      topic.end = kept;
      break;
    case LiveMessage::Kind::kRuns:
      break;
  }
  send_all(topic, kept.bytes);
}

void Hub::heartbeat() {
  const auto bytes = std::make_shared<const std::string>(chunk(": alive\n\n"));
  std::vector<Topic> topics;  // sending may end some
  for (const auto& [name, topic] : topics_) topics.push_back({topic.viewers, {}, {}, {}, 0});
  for (const Topic& topic : topics) send_all(topic, bytes);
}

std::size_t Hub::viewers() const {
  std::size_t count = 0;
  for (const auto& [name, topic] : topics_) count += topic.viewers.size();
  return count;
}

}  // namespace lockstep::serve
