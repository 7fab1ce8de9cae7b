// What a step is made of, before it is put in time: what the simulator plays (sim/step). Pricer::price() puts the same
// figures together in closed form. Plain values, in seconds as expected of the profile.
//
// Durations of collectives and messages are those of the whole transfer, alone on its links; which share of it compute
// cannot hide is beside them.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::cost {

// A transfer, or several one after the other: inside a node, and between nodes.
struct LinkSeconds {
  double inside = 0;
  double between = 0;
  double total() const { return inside + between; }
};

// One pipeline stage, all of its chunks together.
struct StageWork {
  // Of one micro-batch: device, host and the exchanges of tp, cp and ep that are not hidden; no message to another
  // stage, nothing that ZeRO moves.
  double forward = 0;
  double backward = 0;                                 // both gradients, and what is recomputed
  double weight_gradient = 0;                          // of backward: may be postponed
  double exchange_forward = 0, exchange_backward = 0;  // of forward and backward: tp, cp, ep
  double host = 0;  // of both together: beyond what the device takes; the closed form hides no traffic behind it
  bool exchanges_between_nodes = false;  // over NICs, not inside a node
  LinkSeconds send;  // of one micro-batch from one chunk to the next, in one direction; pp_exposed of it is not hidden
  LinkSeconds gather;   // ZeRO-3: before each pass; zero3_exposed of it
  LinkSeconds scatter;  // ZeRO-3: in each backward; zero3_exposed of it
  // The rest of the data-parallel traffic; reduce_exposed of each.
  LinkSeconds scatter_each;  // ZeRO-2: in each backward
  LinkSeconds reduce;        // once: with and after the last backward
  LinkSeconds publish;       // once: updated weights of ZeRO-1 and 2
  double reduce_exposed = 1;
  double optimizer = 0;
  // What the transfers carry, per rank: boundary of one micro-batch, gradients and weights as they travel.
  double send_bytes = 0, gradient_bytes = 0, weight_bytes = 0;
  double exchange_bytes_per_second = 0;  // of the ring that tp is
};

struct StepWork {
  std::vector<StageWork> stages;  // [pp]
  double pp_exposed = 1, zero3_exposed = 1;
  double overlap_slowdown = 1;  // of compute while a collective is hidden behind it
  double host_seconds = 0;      // of a step, whatever it computes
  double spread_share = 0;      // the step grows by this share because nodes are never equally fast
  double bubble_factor = 1;     // that the closed form multiplies idle time by
};

}  // namespace lockstep::cost
