// A note in the checkpoint folder of a run that failed because its numbers went wrong: later runs go on from the last
// checkpoint that proved sound and not from those that were saved after the trouble had begun.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct HealthNote {
  std::int64_t sound_step = 0;   // the last checkpoint that proved sound
  std::int64_t failed_step = 0;  // where the run gave up
  std::string reason;
};

// Durable; replaces an earlier note. Throws UserError (environment).
void write_health_note(const std::filesystem::path& folder, const HealthNote& note);
// Nothing when there is none or it cannot be understood.
std::optional<HealthNote> read_health_note(const std::filesystem::path& folder);
void remove_health_note(const std::filesystem::path& folder);

// Renames the checkpoints after `step` to set-aside-step-*, where no resume finds them and no retention deletes them.
// Returns their new paths, oldest first. Throws UserError (environment).
std::vector<std::filesystem::path> set_aside_after(const std::filesystem::path& folder, std::int64_t step);

}  // namespace lockstep::checkpoint
