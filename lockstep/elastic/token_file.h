// The secret that the nodes of a run share where nobody set LOCKSTEP_TOKEN: a file in the home folder of the run store,
// made by the first run that needs it. Nodes with a shared home have it at once; others need a copy.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::elastic {

inline constexpr const char* kOtherTokenFix =
    "copy the file `token` of its home folder (~/.local/share/lockstep, or $LOCKSTEP_HOME) to the same place here, or "
    "set LOCKSTEP_TOKEN to the same value on every node";

// $LOCKSTEP_TOKEN, else what `home`/token holds: 64 hexadecimal digits, made where there is none. Throws
// environment_error when it cannot be made or read, or when others may read it.
std::string shared_token(const std::filesystem::path& home);

}  // namespace lockstep::elastic
