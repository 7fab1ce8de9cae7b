// What an agent tells a rank's process, one JSON object per line, by "type":
//
//   join    {generation, rank, world, local_rank, local_world, master_host, master_port, one_node, towards?, chaos,
//            restarts, running_seconds}                         be this rank of this generation; `chaos`: the faults
//                                                               that are left for it (elastic/chaos.h); restarts of the
//                                                               run, and how long it has been running
//   abort   {generation, reason}                                a peer failed: leave the generation, keep your state
//   end     {}                                                  you are not needed any more
//
// and what the process says beside the messages of elastic/engine_api.h:
//
//   ready      {}                        it waits for `join`
//   heartbeat  {step, generation, marks, it lives; after its first step in a generation at once, then now and then;
//               busy_seconds}            `marks` grow while it gets on with something that is not a step;
//                                        `busy_seconds`: of its steps so far, without what it waited for others
//   recovered  {lost_steps, step}        the first rank has the state of `step` again; steps that are done again
//                                        (-1: no rank knows)
//   lost       {generation, message, kind, suspect_rank}   it has left the generation and waits for `join`
//   chaos      {event, rank, step, generation}             this fault happens now
//
// A heartbeat also says what takes long, for the report of a hang (elastic/hang_report.h): `operations`, exchanges with
// other ranks, and `phase`, `phase_seconds` of the step. An agent adds of its processes:
//
//   stacks     {text}                    where its threads are
#pragma once

namespace lockstep::elastic::command {

inline constexpr const char* kJoin = "join";
inline constexpr const char* kAbort = "abort";
inline constexpr const char* kEnd = "end";

inline constexpr const char* kReady = "ready";
inline constexpr const char* kHeartbeat = "heartbeat";
inline constexpr const char* kRecovered = "recovered";
inline constexpr const char* kLost = "lost";
inline constexpr const char* kChaos = "chaos";
inline constexpr const char* kStacks = "stacks";
inline constexpr const char* kHang = "hang";  // by the leader to whoever listens: {text, line, step, data}

}  // namespace lockstep::elastic::command
