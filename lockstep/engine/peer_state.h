// PeerState: the state of a run in the memory of its members, as a source that each of them restores from. When ranks
// are lost, those that are left hold the state; a new generation reads what it needs from them, and no disk.
//
//   PeerState peers(world, held);                       // collective: who holds what
//   if (peers.step()) {                                 // some step is complete
//     RecordingSource wanted(peers);  executor.restore({facts, wanted, ...});     // what does this rank read?
//     peers.fetch(wanted.ranges());                     // collective
//     executor.restore({facts, peers, ...});
//   }
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::engine {

// Elements [first, first + count) of a tensor.
struct TensorRange {
  checkpoint::TensorKind kind = checkpoint::TensorKind::kModel;
  std::string name;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const TensorRange&) const = default;
};

class PeerState : public checkpoint::TensorSource {
 public:
  // Collective. `held`: what this process holds, after one or several steps, values in host memory; it must outlive
  // the object. Pieces of kind kRank are each process's own and not looked at.
  PeerState(comm::Communicator world, const std::vector<checkpoint::CheckpointPart>& held);

  // The newest step whose whole state the members hold together; nothing when there is none.
  std::optional<std::int64_t> step() const { return step_; }
  // Of that step, from the first member that holds a part of it.
  const checkpoint::CheckpointFacts& facts() const { return facts_; }
  // The newest step that any member holds a part of.
  std::int64_t newest_seen() const { return newest_seen_; }

  // Collective: brings what read() will be asked for.
  void fetch(const std::vector<TensorRange>& ranges);

  const Facts* find(checkpoint::TensorKind kind, const std::string& name) const override;
  void read(checkpoint::TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const override;

 private:
  using Key = std::pair<checkpoint::TensorKind, std::string>;
  struct Offer {  // one piece of one member
    int rank = 0;
    std::int64_t piece = 0;  // its number among those of that member and step
    std::vector<checkpoint::Series> series;
  };
  struct Tensor {
    Facts facts;
    std::vector<Offer> offers;
  };
  struct Chunk {  // what was fetched
    std::int64_t first = 0;
    torch::Tensor values;
  };
  struct Part {  // of a range, from one offer
    int rank = 0;
    std::int64_t piece = 0, offset = 0;  // first element within the piece
    std::int64_t count = 0;
    std::int64_t first = 0;  // in the whole tensor
    const Key* key = nullptr;
  };

  void choose_step(const std::vector<nlohmann::json>& told, const std::vector<checkpoint::CheckpointPart>& held);
  std::vector<Part> plan_fetch(const std::vector<TensorRange>& ranges) const;
  void exchange(const std::vector<Part>& parts);

  comm::Communicator world_;
  const checkpoint::CheckpointPart* mine_ = nullptr;  // of step_; null: this process holds none of it
  std::optional<std::int64_t> step_;
  std::int64_t newest_seen_ = -1;
  checkpoint::CheckpointFacts facts_;
  std::map<Key, Tensor> tensors_;
  std::map<Key, std::vector<Chunk>> fetched_;
};

// Finds out what a restore reads: values are ones.
class RecordingSource : public checkpoint::TensorSource {
 public:
  explicit RecordingSource(const checkpoint::TensorSource& facts) : facts_(facts) {}
  const Facts* find(checkpoint::TensorKind kind, const std::string& name) const override {
    return facts_.find(kind, name);
  }
  void read(checkpoint::TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const override;
  const std::vector<TensorRange>& ranges() const { return ranges_; }

 private:
  const checkpoint::TensorSource& facts_;
  mutable std::vector<TensorRange> ranges_;
};

}  // namespace lockstep::engine
