// Stands in for liblockstep_engine.so (LOCKSTEP_ENGINE): hands what the command line asks of the engine to a process
// that has the real one loaded, and its messages back. Hundreds of `lockstep train` then pay for libtorch once.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include ENGINE_API_HEADER

namespace {

int connect_to(const char* path) {
  const int socket_number = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
  if (connect(socket_number, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return -1;
  return socket_number;
}

void send_all(int socket_number, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = write(socket_number, text.data() + sent, text.size() - sent);
    if (count <= 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int lockstep_engine_abi(void) { return LOCKSTEP_ENGINE_ABI; }

__attribute__((visibility("default"))) const char* lockstep_engine_versions(void) { return "{}"; }

__attribute__((visibility("default"))) int lockstep_engine_call(const char* verb, const char* request,
                                                                const LockstepEngineHost* host) {
  constexpr const char* kGone =
      R"({"type":"error","rank":0,"kind":"internal","exit_code":1,"message":"the engine died","suspect_rank":-1})";
  const char* path = std::getenv("CROSS_VERB_ENGINE");
  const int socket_number = path != nullptr ? connect_to(path) : -1;
  if (socket_number >= 0) {
    const std::string text(request);
    send_all(socket_number, std::string(verb) + "\n" + std::to_string(text.size()) + "\n" + text);
    FILE* answers = fdopen(socket_number, "r");
    char* line = nullptr;
    std::size_t room = 0;
    while (getline(&line, &room, answers) > 0) {
      if (std::strncmp(line, "exit ", 5) == 0) return std::atoi(line + 5);
      host->message(host->context, line);
    }
  }
  host->message(host->context, kGone);
  return 1;
}

}  // extern "C"
