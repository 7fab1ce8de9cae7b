// The files through which a lane and its worker talk (remote.h).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lockstep::tune {

inline constexpr double kRemotePollSeconds = 0.1;
inline constexpr double kRemoteBeatSeconds = 0.5;

inline std::filesystem::path remote_file(const std::filesystem::path& folder, std::size_t lane, const char* what) {
  return folder / (std::to_string(lane) + "." + what);
}

// The object in a file; nullopt while there is none, or none that can be read.
std::optional<nlohmann::json> read_remote(const std::filesystem::path& file);

// Something that counts in a file of another machine, whose clock is not ours.
class RemotePulse {
 public:
  // Seconds by our clock since `count` last changed.
  double quiet_seconds(const std::string& count);

 private:
  std::string last_;
  double changed_at_ = -1;
};

}  // namespace lockstep::tune
