// Memory of snapshots (engine/snapshots.h): what a rank keeps of the state for recovery, its own and a peer's. The one
// formula that `plan`, `train --dry-run`, `tune` and the engine read. Pure functions.
#pragma once

#include <string>

#include "lockstep/plan/run.h"

namespace lockstep::cost {

// Of the rank that needs most.
struct SnapshotMemory {
  bool needed = false;  // some rank holds what not every other does
  double own = 0;       // bytes of the state that a rank holds
  double peers = 0;     // bytes that it keeps for others
  double room = 0;      // that the run leaves of the memory of a rank on the CPU; 0: unknown (host memory of a GPU)
  bool fits = true;

  // There are two of each: one is complete while the next is on its way.
  double total() const { return needed ? 2 * (own + peers) : 0.0; }
};

SnapshotMemory snapshot_memory(const plan::Run& run);

// Bytes that the run takes for snapshots: 0 where there are none, as `recovery.snapshots.every` says and where `auto`
// finds no room.
double snapshot_bytes(const plan::Run& run);

// "snapshots need 3.0 GiB per rank and 1.2 GiB are left: ...": why `auto` takes none.
std::string why_no_snapshots(const SnapshotMemory& memory);

}  // namespace lockstep::cost
