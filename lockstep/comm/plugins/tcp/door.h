// The one listening socket of a process, at which peers of every group knock. A connection counts only when it
// names its group, its ranks and the group's secret (which the ranks have from the rendezvous store); whoever else
// connects is dropped, and nobody waits for him.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/comm/backend.h"

namespace lockstep::comm {

// A socket that is closed exactly once.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

// What a connecting rank says first. Plain bytes: both ends are builds of one version.
struct Knock {
  static constexpr std::size_t kSecretBytes = 32;
  char magic[8] = {'l', 'o', 'c', 'k', 's', 't', 'e', 'p'};
  std::uint64_t group = 0;  // the same number in every process
  std::int32_t from = 0;    // rank in the group
  std::int32_t to = 0;
  char secret[kSecretBytes] = {};
};

class Door {
 public:
  // Listens on a numeric address or host name, or on the address of `interface_name`. Throws UserError (environment).
  Door(const std::string& address, const std::string& interface_name);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  // Where peers reach it, as text for the store: "192.0.2.7 40123".
  const std::string& place() const { return place_; }
  // The numeric address alone.
  const std::string& address() const { return address_; }

  // From now on peers of this group are let in with this secret.
  void expect(std::uint64_t group, const std::string& secret);
  // Waits for a peer's connection. Throws BackendError{kTimeout, peer}.
  Socket accept(std::uint64_t group, int peer, Clock::time_point deadline);
  // Connections of the group that nobody took are closed.
  void forget(std::uint64_t group);

  // Goes to a peer's door; tries again while it refuses, until the deadline. Throws BackendError.
  static Socket knock(const std::string& place, const Knock& knock, Clock::time_point deadline);

  // 32 random bytes of the kernel's.
  static std::string make_secret();

 private:
  struct Visitor {  // connected, has not said enough yet
    Socket socket;
    Knock said;
    std::size_t bytes = 0;
    Clock::time_point until;
  };
  void run();
  void admit();
  void listen_to(Visitor& visitor);
  void decide(Visitor& visitor);

  std::string address_, place_;
  Socket listener_;
  Socket wake_;  // an eventfd: the thread shall end
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint64_t, std::string> secrets_;
  std::map<std::tuple<std::uint64_t, int>, Socket> let_in_;  // by group and peer
  std::vector<Visitor> visitors_;                            // of the thread alone
  std::thread thread_;
};

}  // namespace lockstep::comm
