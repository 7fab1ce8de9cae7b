// Fabric: what goes on at once and how fast. The model, which is fluid:
//
//   actors    Groups of ranks that go through a step as one. Each has four links: in and out of its devices inside the
//             node, in and out of its share of the node's NICs. All ranks of an actor use theirs alike, so that one
//             link stands for all of them.
//   flows     A message uses the sender's link out and the receiver's link in; a collective in and out of every member.
//             Its work is the seconds it takes alone, latency included. Flows on one link share it fairly: n of them
//             get 1/n of it each. A flow goes at the pace of its slowest link.
//   passes    Compute, of which the share `exchanging` are collectives of its own that it waits for. On their link they
//             count as that share of a flow: a pass is slowed where others take bandwidth from it, and takes its share
//             from them. While flows marked as beside it move, compute gets 2 - slowdown of its pace, so that a hidden
//             second costs slowdown - 1 seconds (cost/links.h).
//
// Two NICs never share a switch port: networks between nodes are taken to be non-blocking, what they lose at scale is
// in the price of a collective (node_falloff).
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/sim/event_queue.h"

namespace lockstep::sim {

enum class Reach : std::uint8_t { kInside, kBetween };  // of a link: its node, other nodes

class Fabric {
 public:
  // `contention` false: nothing slows anything else down.
  Fabric(int actors, double overlap_slowdown, bool contention);

  // Share of the bandwidth that an actor's NICs have, before anything starts.
  void set_nic_speed(int actor, double share);
  // A flow that never ends on every NIC out, as a share of its bandwidth: checkpoints on their way.
  void set_background(double share);

  // Each starts now and comes out of next() with its tag when it is done. Seconds may be 0.
  void message(double seconds, Reach reach, int from, int to, std::uint32_t tag);
  // `members` must stay where they are until it is done. `beside`: slows the passes of its members.
  void collective(double seconds, Reach reach, const std::vector<int>& members, bool beside, std::uint32_t tag);
  void pass(double seconds, double exchanging, Reach reach, int actor, std::uint32_t tag);
  void wait(double seconds, std::uint32_t tag);

  double now() const { return now_; }
  std::uint64_t events() const { return events_; }
  // Lets time go on until something is done; false when nothing goes on. At most 2^32 starts and changes of pace.
  bool next(std::uint32_t& tag);

 private:
  enum class Kind : std::uint8_t { kNone, kWait, kPass, kMessage, kCollective };
  struct Activity {
    Kind kind = Kind::kNone;
    Reach reach = Reach::kInside;
    bool beside = false;
    std::uint32_t tag = 0;
    int first = 0, second = 0;                  // actor of a pass; ends of a message
    const std::vector<int>* members = nullptr;  // of a collective
    double exchanging = 0;
    double left = 0, rate = 1, updated = 0, due = 0;
    int slowest = -1;  // link that sets the rate of a flow; -1: none does
  };
  struct Link {
    double load = 0;  // flows, and shares of passes
    double speed = 1;
    std::vector<std::uint32_t> flows;
  };

  static constexpr int kLinksPerActor = 4;
  static int link_in(int actor, Reach reach) { return kLinksPerActor * actor + 2 * static_cast<int>(reach); }
  static int link_out(int actor, Reach reach) { return link_in(actor, reach) + 1; }
  template <class Visit>
  static void for_each_link(const Activity& activity, Visit visit);

  std::uint32_t start(Activity activity);
  void finish(std::uint32_t id);
  double pace(const Link& link) const;        // of a flow on it
  void change_load(int link, double weight);  // and who is on it
  void find_rate(std::uint32_t id);
  void find_pass_rate(int actor);
  void set_rate(std::uint32_t id, double rate);
  void mark_beside(const Activity& activity, int change);

  bool contention_;
  double overlap_pace_;
  double now_ = 0;
  std::uint64_t events_ = 0;
  EventQueue queue_;
  std::vector<Activity> activities_;
  std::vector<std::uint32_t> free_;
  std::vector<Link> links_;
  std::vector<std::int64_t> pass_of_;  // by actor; -1: none
  std::vector<int> beside_;            // by actor: flows that slow its compute
};

}  // namespace lockstep::sim
