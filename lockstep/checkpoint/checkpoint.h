// Checkpoints: training state on disk that survives a crash at any moment (docs/reference/checkpoint.md).
//
// A checkpoint is a folder `step-00000123` with manifest.json and, of every rank, `rank-00003.safetensors` (its pieces
// of weights and optimizer state, each element once over all ranks) and `rank-00003.json` (which pieces, and what else
// the rank keeps). It is written into a hidden folder beside it, fsynced and renamed, so it is either complete or not
// there; the manifest knows size and CRC-32C of every file. A crash leaves the previous checkpoints untouched; what it
// left behind is removed by the next save. Checkpoints being read are never deleted. Format 1 (whole tensors in
// model.safetensors and optimizer.safetensors) is read as well.
//
// saver.h writes them; here is what finds, checks and reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/durable_file.h"
#include "lockstep/checkpoint/pieces.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// What the manifest says of a checkpoint.
struct CheckpointInfo {
  std::filesystem::path path;
  std::int64_t step = 0;
  int world = 1;
  int format = 2;
  double created_at = 0.0;  // seconds since 1970
  std::uint64_t bytes = 0;  // all files
};

// One thing wrong with a checkpoint. `bytes` == 0: the file as a whole (missing, wrong size, unreadable).
struct Damage {
  std::string file;          // relative to the checkpoint
  std::uint64_t offset = 0;  // region of the file
  std::uint64_t bytes = 0;
  std::string problem;

  std::string to_string() const;  // "rank-00000.safetensors: bytes 0..4194304 do not match their checksum (tensors a)"
};

using Warn = std::function<void(const std::string&)>;

// Checkpoints of a directory whose manifest can be read, newest step first. Contents are not checked.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& directory);

// Reads every byte of the checkpoint; empty when all is well, and `info` (where given) then says what it is.
std::vector<Damage> verify_checkpoint(const std::filesystem::path& checkpoint, CheckpointInfo* info = nullptr);

// The newest checkpoint that verifies; damaged ones are passed over with a warning. Call it on one rank and send the
// answer to the others, so that all resume from the same one. Nothing when there is none.
std::optional<CheckpointInfo> find_latest(const std::filesystem::path& directory, const Warn& warn = {});

// An open checkpoint. While it is alive, retention leaves the folder alone (a shared lock on it). Reading is not
// thread-safe. A range is read from the blocks that hold it, whose checksums are verified; beside what the caller
// gives, it holds at most memory_bytes().
class CheckpointReader : public TensorSource {
 public:
  // Throws UserError: environment when it is not there, bad input when the manifest is damaged or from a newer version.
  static CheckpointReader open(const std::filesystem::path& checkpoint);
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;
  ~CheckpointReader() override;

  const CheckpointInfo& info() const;
  const nlohmann::json& manifest() const;

  // Step, job, position in the data; rank_state of rank `rank`, empty for a rank that the checkpoint has not.
  CheckpointFacts facts(int rank) const;
  // Tensors that rank `rank` kept for itself; empty for a rank that the checkpoint has not.
  TensorMap rank_tensors(int rank) const;
  // Weights, buffers and optimizer state. The index of rank `rank` is looked at first: where the layout is unchanged
  // the others' are not needed.
  void prefer(int rank) const;
  const Facts* find(TensorKind kind, const std::string& name) const override;
  void read(TensorKind kind, const std::string& name, std::int64_t first, torch::Tensor out) const override;
  // Sorted. Reads every rank's index.
  std::vector<std::string> names(TensorKind kind) const;
  // Everything whole, with rank `rank`'s own part: for tools and tests.
  CheckpointContents read(int rank) const;

  struct Piece {
    int rank = 0;
    TensorKind kind = TensorKind::kModel;
    std::string name;
    std::uint64_t bytes = 0;
  };
  std::vector<Piece> pieces() const;

  std::uint64_t bytes_read() const;    // from the disk so far
  std::uint64_t memory_bytes() const;  // held at most beside the caller's

 private:
  struct State;
  explicit CheckpointReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A pinned checkpoint is not deleted by retention, whatever its age; a file in its folder says so. Durable.
void pin_checkpoint(const std::filesystem::path& checkpoint, bool pinned, const FileLayer& files = system_files());
bool is_pinned_by_run(const std::filesystem::path& checkpoint);  // not by a file of the user's
bool is_pinned(const std::filesystem::path& checkpoint);

// Deletes the oldest checkpoints until `keep` are left, pinned ones not counted. The newest one that verifies is always
// among those left, and one that somebody reads is skipped. A save does the same; returns the folders deleted.
std::vector<std::filesystem::path> retain(const std::filesystem::path& directory, std::int64_t keep);

}  // namespace lockstep::checkpoint
