// PeerState: the state of a run in the memory of its members, as a source that each of them restores from. When ranks
// are lost, those that are left hold the state; a new generation reads what it needs from them, and no disk.
//
// Memory beside the state: a rank's own pieces are read where they lie. What comes from others is kept until the object
// goes (at most this rank's part of the state), and one round holds at most 256 MiB on its way in and as much on its
// way out, unless a single message asks for more. Time grows with the pieces and ranges, not with their product.
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
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/engine/training_state.h"

namespace lockstep::engine {

// Elements [first, first + count) of a tensor.
struct TensorRange {
  checkpoint::TensorKind kind = checkpoint::TensorKind::kModel;
  std::string name;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const TensorRange&) const = default;
};

using TensorName = std::pair<checkpoint::TensorKind, std::string>;
// The tensors that a rank holds a piece of, other than its own.
std::vector<TensorName> tensors_of(const checkpoint::CheckpointPart& part);

class PeerState : public checkpoint::TensorSource {
 public:
  // Collective. `held`: what this process holds, after one or several steps, values in host memory; it must outlive
  // the object. Pieces of kind kRank belong to the rank that facts.rank_state names ("rank"), else to the member.
  // `needed`: tensors that this rank will read, without which a step is not complete (a lost pipeline stage's, say,
  // which nobody may hold a piece of).
  PeerState(comm::Communicator world, const std::vector<checkpoint::CheckpointPart>& held,
            const std::vector<TensorName>& needed = {});

  // The newest step whose whole state the members hold together; nothing when there is none.
  std::optional<std::int64_t> step() const { return step_; }
  // Of that step, from the first member that holds a part of it.
  const checkpoint::CheckpointFacts& facts() const { return facts_; }
  // The newest step that any member holds a part of.
  std::int64_t newest_seen() const { return newest_seen_; }
  // Whether all that the ranks had of their own (error feedback of a compression) is there. Where not, facts() say that
  // another number of ranks made the state, so that nobody keeps its own.
  bool has_rank_state() const { return has_rank_state_; }

  // Collective: brings what read() will be asked for, and what this rank had of its own.
  void fetch(const std::vector<TensorRange>& ranges);
  // After fetch(): pieces of kind kRank that belong to this rank.
  checkpoint::TensorMap rank_tensors() const;

  const Facts* find(checkpoint::TensorKind kind, const std::string& name) const override;
  void read(checkpoint::TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const override;

 private:
  using Key = TensorName;  // of kind kRank: "3:name", the rank that it belongs to
  struct Place {           // of a piece
    int rank = 0;          // the member that holds it
    std::int64_t part = 0, piece = 0;
  };
  struct Offer {
    Place place;
    std::vector<checkpoint::Series> series;
  };
  struct Tensor {
    Facts facts;
    std::vector<Offer> offers;
  };
  struct Chunk {  // what is here, of one tensor
    std::int64_t first = 0, count = 0;
    const char* values = nullptr;
  };
  struct Part {  // of a range, from one offer
    Place place;
    std::int64_t offset = 0;  // first element within the piece
    std::int64_t count = 0;
    std::int64_t first = 0;  // in the whole tensor
    const Key* key = nullptr;
    std::int64_t width = 0;  // bytes of an element
  };

  void choose_step(const std::vector<nlohmann::json>& told);
  // Fills tensors_; the facts of the step, null when nobody has any.
  const nlohmann::json* collect(const std::vector<nlohmann::json>& told, std::int64_t step);
  bool is_whole() const;
  bool finds_rank_state(const std::vector<nlohmann::json>& told, std::int64_t step) const;
  std::vector<Part> plan_fetch(const std::vector<TensorRange>& ranges) const;
  void plan_range(const TensorRange& range, std::vector<Part>& parts) const;
  const char* memory_of(std::int64_t part, std::int64_t piece, std::int64_t offset) const;
  void exchange(const std::vector<Part>& parts);
  using Bytes = std::unique_ptr<char[]>;
  Bytes answer(const std::vector<std::int64_t>& told, const std::vector<std::int64_t>& told_counts,
               std::vector<std::int64_t>& send) const;
  void put(const Part& part, const char* values);

  comm::Communicator world_;
  const std::vector<checkpoint::CheckpointPart>& held_;
  std::optional<std::int64_t> step_;
  std::int64_t newest_seen_ = -1;
  bool has_rank_state_ = true;
  checkpoint::CheckpointFacts facts_;
  std::set<TensorName> needed_;  // by any member
  std::map<Key, Tensor> tensors_;
  std::map<Key, std::vector<Chunk>> fetched_;
  std::vector<Bytes> received_;  // what chunks from other members point into
};

// Collective: puts the state of peers.step() back, which must be there.
void restore(TrainingState& state, PeerState& peers, const spec::Job& job, int world);

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
