// Environment variables for the time of one call. One holder at a time in the process, because the environment is the
// process's; other threads that read it meanwhile see the values.
#pragma once

#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace lockstep::comm {

class ScopedEnvironment {
 public:
  // Variables whose value is "" stay as they are.
  explicit ScopedEnvironment(const std::map<std::string, std::string>& variables) : lock_(mutex()) {
    for (const auto& [name, value] : variables) {
      if (value.empty()) continue;
      const char* const before = std::getenv(name.c_str());
      before_[name] = before == nullptr ? std::nullopt : std::optional<std::string>(before);
      setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
  }
  ~ScopedEnvironment() {
    for (const auto& [name, value] : before_) {
      value ? setenv(name.c_str(), value->c_str(), /*overwrite=*/1) : unsetenv(name.c_str());
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  std::unique_lock<std::mutex> lock_;
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace lockstep::comm
