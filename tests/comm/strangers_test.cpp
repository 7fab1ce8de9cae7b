// Strangers who connect to a rank's sockets while a group is made: they are dropped, and the ranks do not notice.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/comm/plugins/tcp/door.h"
#include "tests/comm/worlds.h"

namespace lockstep::comm::testing {
namespace {

// Ports on which something listens on 127.0.0.1.
std::set<int> listening_ports() {
  std::set<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state;
    fields >> number >> local >> remote >> state;
    if (state == "0A" && local.rfind("0100007F:", 0) == 0) ports.insert(std::stoi(local.substr(9), nullptr, 16));
  }
  return ports;
}

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  ::close(fd);
  return -1;
}

// Connects to every port that was not there before, says `words`, and holds on.
class Stranger {
 public:
  explicit Stranger(std::string words) : words_(std::move(words)), before_(listening_ports()) {
    thread_ = std::thread([this] { run(); });
  }
  ~Stranger() {
    stop_ = true;
    thread_.join();
    for (const int fd : held_) ::close(fd);
  }
  int visits() const { return visits_; }

 private:
  void run() {
    while (!stop_) {
      for (const int port : listening_ports()) {
        if (before_.count(port) > 0 || held_.size() > 200) continue;
        const int fd = connect_to(port);
        if (fd < 0) continue;
        (void)!::send(fd, words_.data(), words_.size(), MSG_NOSIGNAL);
        held_.push_back(fd);
        ++visits_;
      }
    }
  }

  const std::string words_;
  const std::set<int> before_;
  std::atomic<bool> stop_{false};
  std::atomic<int> visits_{0};
  std::vector<int> held_;
  std::thread thread_;
};

class Strangers : public ::testing::TestWithParam<const char*> {};

TEST_P(Strangers, do_not_disturb_ranks_that_meet) {
  const std::string kind = GetParam();
  std::string words;
  if (kind == "garbage") words.assign(4096, 'x');
  if (kind == "half_a_knock") words.assign(reinterpret_cast<const char*>(Knock().magic), 8);
  if (kind == "wrong_secret") {
    const Knock knock;
    words.assign(reinterpret_cast<const char*>(&knock), sizeof(knock));
  }
  int visits = 0;
  std::vector<std::exception_ptr> thrown;
  {
    const Stranger stranger(words);
    thrown = run_ranks({.backend = "tcp_apart", .size = 4}, [&](Communicator& comm) {
      while (stranger.visits() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      for (int round = 0; round < 20; ++round) {
        Communicator pair = comm.subgroup({comm.rank() & ~1, comm.rank() | 1}, "pair");
        double value = 1;
        pair.all_reduce({&value, 1, DType::kF64}).wait();
        if (value != 2) throw std::runtime_error("a sum is wrong");
        comm.barrier().wait();
      }
    });
    visits = stranger.visits();
  }
  for (const auto& one : thrown) {
    const auto fault = fault_of(one);
    EXPECT_FALSE(fault.has_value()) << fault->what();
  }
  EXPECT_GT(visits, 0) << "nobody disturbed anything";
}

INSTANTIATE_TEST_SUITE_P(Kinds, Strangers, ::testing::Values("silence", "garbage", "half_a_knock", "wrong_secret"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(Door, lets_in_who_knows_the_secret_and_nobody_else) {
  Door door("127.0.0.1", "");
  const std::string secret = Door::make_secret();
  door.expect(7, secret);
  Knock knock;
  knock.group = 7;
  knock.from = 3;
  const auto soon = Clock::now() + std::chrono::milliseconds(300);
  EXPECT_THROW(Door::knock(door.place(), knock, soon), BackendError);
  std::copy(secret.begin(), secret.end(), knock.secret);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  const Socket outside = Door::knock(door.place(), knock, deadline);
  const Socket inside = door.accept(7, 3, deadline);
  ASSERT_TRUE(outside && inside);
  ASSERT_EQ(::send(outside.get(), "hello", 5, 0), 5);
  char heard[5] = {};
  pollfd polled{inside.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 60'000), 1);
  ASSERT_EQ(::recv(inside.get(), heard, 5, 0), 5);
  EXPECT_EQ(std::string(heard, 5), "hello");
}

}  // namespace
}  // namespace lockstep::comm::testing
