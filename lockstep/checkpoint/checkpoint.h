// Checkpoints: training state on disk that survives a crash at any moment (docs/reference/checkpoint.md).
//
// A checkpoint is a folder `step-00000123` holding manifest.json, model.safetensors, optimizer.safetensors and one
// `rank-00003.json` (+ `.safetensors`) per rank. It is written into a hidden folder beside it, fsynced and renamed, so
// it is either complete or not there; the manifest knows the size and CRC-32C of every file. A crash leaves the
// previous checkpoints untouched; what it left behind is removed by the next save. Checkpoints being read are never
// deleted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/durable_file.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// Everything needed to go on. Data-parallel ranks hold the same shared part, which rank 0 writes; the rank part is
// written and read by each rank for itself.
struct CheckpointContents {
  std::int64_t step = 0;                             // optimizer steps done
  TensorMap model;                                   // parameters and buffers by their module names
  TensorMap optimizer;                               // moments and the like
  nlohmann::json loader = nlohmann::json::object();  // position in the data
  std::string job_yaml;
  nlohmann::json extra = nlohmann::json::object();  // run id, versions, layout: whatever the caller wants back

  nlohmann::json rank_state = nlohmann::json::object();  // this rank's generators, ...
  TensorMap rank_tensors;                                // this rank's error feedback, generator states, ...
};

struct SaveOptions {
  std::filesystem::path directory;  // holds the step-* folders; created when missing; shared by all ranks
  int rank = 0;
  int world = 1;
  std::int64_t keep = 3;  // checkpoints kept after a save, at least 1
  std::string run_id;     // the same on all ranks; keeps two runs that save into one directory by mistake apart
  // Returns when every rank has called it (Communicator::barrier().wait(timeout)). Called exactly three times per save
  // on every rank, even on one whose disk is full, so no rank waits for one that failed. May throw (a lost peer). Not
  // needed when world == 1.
  std::function<void()> barrier;
  // Kept whatever `keep` says: the last checkpoint of healthy training, while later ones may not be.
  std::optional<std::int64_t> pinned_step;
  // Called on rank 0 before the checkpoint takes its place and older ones go; may throw (the folder is another run's).
  std::function<void()> before_publish;
};

struct SaveResult {
  std::filesystem::path path;  // the published folder
  std::uint64_t bytes = 0;     // written by this rank
  double seconds = 0.0;
};

// Saves one checkpoint; collective over the ranks and blocking (tensors may change after it returns). On every rank it
// either returns with the checkpoint published or throws: UserError (environment: disk full, permission, another run
// writing to the same directory), or what the barrier threw. Saving a step again replaces that step's checkpoint.
SaveResult save_checkpoint(const CheckpointContents& contents, const SaveOptions& options);

// What the manifest says of a checkpoint.
struct CheckpointInfo {
  std::filesystem::path path;
  std::int64_t step = 0;
  int world = 1;
  double created_at = 0.0;  // seconds since 1970
  std::uint64_t bytes = 0;  // all files
};

// One thing wrong with a checkpoint. `bytes` == 0: the file as a whole (missing, wrong size, unreadable).
struct Damage {
  std::string file;          // relative to the checkpoint
  std::uint64_t offset = 0;  // region of the file
  std::uint64_t bytes = 0;
  std::string problem;

  std::string to_string() const;  // "model.safetensors: bytes 0..4194304 do not match their checksum (tensors a, b)"
};

using Warn = std::function<void(const std::string&)>;

// Checkpoints of a directory whose manifest can be read, newest step first. Contents are not checked.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& directory);

// Reads every byte of the checkpoint; empty when all is well, and `info` (where given) then says what it is.
std::vector<Damage> verify_checkpoint(const std::filesystem::path& checkpoint, CheckpointInfo* info = nullptr);

// The newest checkpoint that verifies; damaged ones are passed over with a warning. Call it on one rank and send the
// answer to the others, so that all resume from the same one. Nothing when there is none.
std::optional<CheckpointInfo> find_latest(const std::filesystem::path& directory, const Warn& warn = {});

// An open checkpoint. While it is alive, retention leaves the folder alone (a shared lock on it).
class CheckpointReader {
 public:
  // Throws UserError: environment when it is not there, bad input when the manifest is damaged or from a newer version.
  static CheckpointReader open(const std::filesystem::path& checkpoint);

  const CheckpointInfo& info() const { return info_; }
  const nlohmann::json& manifest() const { return manifest_; }

  // The shared part and rank `rank`'s part, with the checksums of the files it reads verified. A rank the checkpoint
  // has not (more ranks than before) gets an empty rank part. Throws UserError (bad input) naming the damaged file and
  // region.
  CheckpointContents read(int rank) const;

 private:
  CheckpointReader() = default;

  CheckpointInfo info_;
  nlohmann::json manifest_;
  UniqueFd lock_;
};

// Deletes the oldest checkpoints until `keep` are left. The newest one that verifies is always among those left, and
// one that somebody reads is skipped. save_checkpoint() calls it; returns the folders deleted.
std::vector<std::filesystem::path> retain(const std::filesystem::path& directory, std::int64_t keep);

}  // namespace lockstep::checkpoint
