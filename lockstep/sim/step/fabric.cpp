#include "lockstep/sim/step/fabric.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::sim {

Fabric::Fabric(int actors, double overlap_slowdown, bool contention)
    : contention_(contention),
      overlap_pace_(std::max(0.1, 2 - overlap_slowdown)),
      links_(static_cast<std::size_t>(kLinksPerActor) * static_cast<std::size_t>(actors)),
      pass_of_(static_cast<std::size_t>(actors), -1),
      beside_(static_cast<std::size_t>(actors), 0) {
  queue_.reserve(4 * static_cast<std::size_t>(actors));
}

void Fabric::set_nic_speed(int actor, double share) {
  for (const int link : {link_in(actor, Reach::kBetween), link_out(actor, Reach::kBetween)}) {
    links_[static_cast<std::size_t>(link)].speed = share;
  }
}

void Fabric::set_background(double share) {
  for (std::size_t actor = 0; actor < pass_of_.size(); ++actor) {
    links_[static_cast<std::size_t>(link_out(static_cast<int>(actor), Reach::kBetween))].load += share;
  }
}

template <class Visit>
void Fabric::for_each_link(const Activity& activity, Visit visit) {
  switch (activity.kind) {
    case Kind::kMessage:
      visit(link_out(activity.first, activity.reach));
      visit(link_in(activity.second, activity.reach));
      return;
    case Kind::kCollective:
      for (const int member : *activity.members) {
        visit(link_in(member, activity.reach));
        visit(link_out(member, activity.reach));
      }
      return;
    case Kind::kPass:
      if (activity.exchanging <= 0) return;
      visit(link_in(activity.first, activity.reach));
      visit(link_out(activity.first, activity.reach));
      return;
    case Kind::kWait:
    case Kind::kNone:
      return;
  }
}

void Fabric::message(double seconds, Reach reach, int from, int to, std::uint32_t tag) {
  start({.kind = Kind::kMessage, .reach = reach, .tag = tag, .first = from, .second = to, .left = seconds});
}

void Fabric::collective(double seconds, Reach reach, const std::vector<int>& members, bool beside, std::uint32_t tag) {
  start(
      {.kind = Kind::kCollective, .reach = reach, .beside = beside, .tag = tag, .members = &members, .left = seconds});
}

void Fabric::pass(double seconds, double exchanging, Reach reach, int actor, std::uint32_t tag) {
  start({.kind = Kind::kPass, .reach = reach, .tag = tag, .first = actor, .exchanging = exchanging, .left = seconds});
}

void Fabric::wait(double seconds, std::uint32_t tag) { start({.kind = Kind::kWait, .tag = tag, .left = seconds}); }

std::uint32_t Fabric::start(Activity activity) {
  std::uint32_t id = 0;
  if (free_.empty()) {
    id = static_cast<std::uint32_t>(activities_.size());
    activities_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  activity.updated = now_;
  activity.due = now_ + activity.left;
  activities_[id] = activity;
  const Kind kind = activity.kind;
  const bool is_flow = kind == Kind::kMessage || kind == Kind::kCollective;
  const double weight = is_flow ? 1.0 : activity.exchanging;
  for_each_link(activity, [&](int link) {
    if (is_flow) links_[static_cast<std::size_t>(link)].flows.push_back(id);
    change_load(link, weight);
  });
  if (kind == Kind::kPass) {
    LOCKSTEP_ASSERT(pass_of_[static_cast<std::size_t>(activity.first)] < 0, "one pass at a time");
    pass_of_[static_cast<std::size_t>(activity.first)] = id;
  }
  activities_[id].due = -1;  // nothing is queued yet
  if (is_flow) find_rate(id);
  if (kind == Kind::kPass) find_pass_rate(activity.first);
  if (activities_[id].due < 0) {
    activities_[id].due = now_ + activities_[id].left / activities_[id].rate;
    queue_.add(activities_[id].due, id);
  }
  if (activity.beside) mark_beside(activity, 1);
  return id;
}

void Fabric::finish(std::uint32_t id) {
  const Activity done = activities_[id];
  activities_[id].kind = Kind::kNone;
  free_.push_back(id);
  if (done.kind == Kind::kPass) pass_of_[static_cast<std::size_t>(done.first)] = -1;
  const bool is_flow = done.kind == Kind::kMessage || done.kind == Kind::kCollective;
  for_each_link(done, [&](int link) {
    std::vector<std::uint32_t>& flows = links_[static_cast<std::size_t>(link)].flows;
    if (is_flow) flows.erase(std::find(flows.begin(), flows.end(), id));
    change_load(link, is_flow ? -1.0 : -done.exchanging);
  });
  if (done.beside) mark_beside(done, -1);
}

double Fabric::pace(const Link& link) const { return contention_ ? link.speed / std::max(1.0, link.load) : link.speed; }

// A flow whose own link has become slower than its slowest one has a new slowest one; one whose slowest link has become
// faster looks again. Nothing else can have changed its pace.
void Fabric::change_load(int number, double weight) {
  Link& link = links_[static_cast<std::size_t>(number)];
  const double before = pace(link);
  link.load += weight;
  const double after = pace(link);
  if (after == before) return;
  for (const std::uint32_t id : link.flows) {
    Activity& flow = activities_[id];
    if (flow.due < 0) continue;  // starts just now
    if (after < flow.rate) {
      flow.slowest = number;
      set_rate(id, after);
    } else if (flow.slowest == number) {
      find_rate(id);
    }
  }
  const int actor = number / kLinksPerActor;
  if (pass_of_[static_cast<std::size_t>(actor)] >= 0) find_pass_rate(actor);
}

void Fabric::find_rate(std::uint32_t id) {
  double rate = 1;
  int slowest = -1;
  for_each_link(activities_[id], [&](int link) {
    const double here = pace(links_[static_cast<std::size_t>(link)]);
    if (slowest >= 0 && here >= rate) return;
    rate = here;
    slowest = link;
  });
  activities_[id].slowest = slowest;
  set_rate(id, rate);
}

void Fabric::find_pass_rate(int actor) {
  const auto id = static_cast<std::uint32_t>(pass_of_[static_cast<std::size_t>(actor)]);
  const Activity& pass = activities_[id];
  double rate = 1;
  if (pass.exchanging > 0) {
    double slowest = 1;
    for_each_link(pass, [&](int link) { slowest = std::min(slowest, pace(links_[static_cast<std::size_t>(link)])); });
    rate = 1 / (1 - pass.exchanging + pass.exchanging / slowest);
  }
  if (beside_[static_cast<std::size_t>(actor)] > 0) rate *= overlap_pace_;
  set_rate(id, rate);
}

void Fabric::set_rate(std::uint32_t id, double rate) {
  Activity& activity = activities_[id];
  if (activity.due >= 0 && rate == activity.rate) return;
  activity.left = std::max(0.0, activity.left - (now_ - activity.updated) * activity.rate);
  activity.updated = now_;
  activity.rate = rate;
  activity.due = now_ + activity.left / rate;
  queue_.add(activity.due, id);
}

void Fabric::mark_beside(const Activity& activity, int change) {
  for (const int member : *activity.members) {
    beside_[static_cast<std::size_t>(member)] += change;
    if (pass_of_[static_cast<std::size_t>(member)] >= 0) find_pass_rate(member);
  }
}

bool Fabric::next(std::uint32_t& tag) {
  while (!queue_.empty()) {
    const EventQueue::Event event = queue_.pop();
    const Activity& activity = activities_[event.what];
    // What has changed its pace, or is over, has left events behind.
    if (activity.kind == Kind::kNone || event.time != activity.due) continue;
    now_ = event.time;
    ++events_;
    tag = activity.tag;
    finish(event.what);
    return true;
  }
  return false;
}

}  // namespace lockstep::sim
