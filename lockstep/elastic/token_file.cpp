#include "lockstep/elastic/token_file.h"

#include "lockstep/base/secret.h"
#include "lockstep/elastic/store.h"

namespace lockstep::elastic {

std::string shared_token(const std::filesystem::path& home) {
  if (std::string token = token_from_environment(); !token.empty()) return token;
  return secret_in_file(home / "token",
                        "set LOCKSTEP_TOKEN to the same secret on every node, or LOCKSTEP_HOME to a folder of yours");
}

}  // namespace lockstep::elastic
