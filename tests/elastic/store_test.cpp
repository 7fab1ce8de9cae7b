#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/elastic/sockets.h"
#include "lockstep/elastic/store.h"

namespace lockstep::elastic {
namespace {

using std::chrono::steady_clock;
constexpr milliseconds kLong{30'000};

std::shared_ptr<StoreClient> connect_to(const StoreServer& server, const std::string& token = "") {
  return std::make_shared<StoreClient>(StoreClientOptions{.port = server.port(), .token = token});
}

// The same behaviour from a store in this process and from one behind a server.
class Store : public ::testing::TestWithParam<bool> {
 protected:
  Store() {
    if (GetParam()) {
      server_ = std::make_unique<StoreServer>();
      store_ = connect_to(*server_);
    } else {
      store_ = std::make_shared<MemoryStore>();
    }
  }
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<KeyValueStore> store_;
};

TEST_P(Store, gives_back_what_was_set) {
  std::string value("with \0 zero \n and newline", 25);
  store_->set("key", value);
  EXPECT_EQ(store_->get("key", kLong), value);
  store_->set("key", "");
  EXPECT_EQ(store_->get("key", kLong), "");
  EXPECT_EQ(store_->try_get("other"), std::nullopt);
}

TEST_P(Store, counts_without_losing_a_step) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 50; ++step) store_->add("counter", 3);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store_->add("counter", 0), 600);
  EXPECT_EQ(store_->add("counter", -1000), -400);
  EXPECT_EQ(store_->get("counter", kLong), "-400");
}

TEST_P(Store, refuses_to_count_in_text) {
  store_->set("name", "abc");
  EXPECT_THROW(store_->add("name", 1), UserError);
  EXPECT_EQ(store_->get("name", kLong), "abc");
}

TEST_P(Store, compare_set_lets_exactly_one_win) {
  EXPECT_TRUE(store_->compare_set("leader", std::nullopt, "a"));
  EXPECT_FALSE(store_->compare_set("leader", std::nullopt, "b"));
  EXPECT_FALSE(store_->compare_set("leader", "x", "b"));
  EXPECT_TRUE(store_->compare_set("leader", "a", "b"));
  EXPECT_EQ(store_->get("leader", kLong), "b");
}

TEST_P(Store, get_blocks_until_the_key_comes) {
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(100));
    store_->set("late", "here");
  });
  EXPECT_EQ(store_->get("late", kLong), "here");
  later.join();
}

TEST_P(Store, wait_blocks_until_the_last_key_comes) {
  store_->set("a", "1");
  std::thread later([&] {
    store_->set("c", "1");
    std::this_thread::sleep_for(milliseconds(100));
    store_->add("b", 1);
  });
  store_->wait({"a", "b", "c"}, kLong);
  EXPECT_EQ(store_->try_get("b"), "1");
  later.join();
}

TEST_P(Store, a_key_that_never_comes_is_a_timeout_that_names_it) {
  const auto before = steady_clock::now();
  try {
    store_->get("never", milliseconds(200));
    FAIL() << "found it";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.kind(), FaultKind::kTimeout);
    EXPECT_NE(std::string(fault.what()).find("never"), std::string::npos) << fault.what();
  }
  EXPECT_GE(steady_clock::now() - before, milliseconds(190));
  EXPECT_THROW(store_->wait({"never"}, milliseconds(50)), Fault);
}

TEST_P(Store, remove_tells_whether_there_was_something) {
  store_->set("key", "value");
  EXPECT_TRUE(store_->remove("key"));
  EXPECT_FALSE(store_->remove("key"));
  EXPECT_EQ(store_->try_get("key"), std::nullopt);
}

TEST_P(Store, keys_and_values_have_limits) {
  EXPECT_THROW(store_->set("", "value"), UserError);
  EXPECT_THROW(store_->set(std::string(kMaxKeyBytes + 1, 'k'), "value"), UserError);
  EXPECT_THROW(store_->set("key", std::string(kMaxValueBytes + 1, 'v')), UserError);
  store_->set(std::string(kMaxKeyBytes, 'k'), std::string(kMaxValueBytes, 'v'));
  EXPECT_EQ(store_->get(std::string(kMaxKeyBytes, 'k'), kLong).size(), kMaxValueBytes);
}

TEST_P(Store, has_a_limit_for_everything_together) {
  const std::string value(kMaxValueBytes, 'v');
  const std::size_t fit = kMaxStoreBytes / kMaxValueBytes - 1;
  for (std::size_t i = 0; i < fit; ++i) store_->set("key" + std::to_string(i), value);
  EXPECT_THROW(store_->set("another", value), UserError);
  EXPECT_TRUE(store_->remove("key0"));
  store_->set("another", value);
}

TEST_P(Store, prefixes_keep_groups_apart) {
  PrefixStore a(store_, "a/");
  PrefixStore b(store_, "b/");
  a.set("key", "1");
  EXPECT_EQ(b.try_get("key"), std::nullopt);
  EXPECT_EQ(store_->get("a/key", kLong), "1");
}

INSTANTIATE_TEST_SUITE_P(Where, Store, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "server" : "memory"; });

TEST(StoreServer, a_blocked_call_does_not_hold_up_other_threads_of_the_client) {
  StoreServer server;
  const auto store = connect_to(server);
  std::thread blocked([&] { EXPECT_EQ(store->get("door", kLong), "open"); });
  std::this_thread::sleep_for(milliseconds(50));
  store->set("door", "open");
  blocked.join();
}

TEST(StoreServer, serves_many_clients_at_once) {
  StoreServer server;
  constexpr int kClients = 32;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      const auto store = connect_to(server);
      store->set("rank/" + std::to_string(i), std::to_string(i));
      std::vector<std::string> keys;
      for (int j = 0; j < kClients; ++j) keys.push_back("rank/" + std::to_string(j));
      store->wait(keys, kLong);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(StoreServer, refuses_to_listen_beyond_loopback_without_a_token) {
  try {
    StoreServer server({.address = "0.0.0.0"});
    FAIL() << "listens";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(error.fix().find("LOCKSTEP_TOKEN"), std::string::npos);
  }
  StoreServer server({.address = "0.0.0.0", .token = "secret"});
  EXPECT_GT(server.port(), 0);
}

TEST(StoreServer, a_port_in_use_is_an_environment_error_that_names_it) {
  StoreServer first;
  try {
    StoreServer second({.port = first.port()});
    FAIL() << "listens twice";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("port " + std::to_string(first.port())), std::string::npos);
    EXPECT_NE(error.fix().find("another port"), std::string::npos);
  }
}

TEST(StoreServer, a_wrong_token_is_refused_and_not_repeated_in_the_message) {
  StoreServer server({.token = "right-secret"});
  for (const std::string& token : {std::string("wrong-secret"), std::string(""), std::string("right-secre")}) {
    try {
      connect_to(server, token);
      FAIL() << "was let in";
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find("-secre"), std::string::npos) << error.what();
    }
  }
  connect_to(server, "right-secret")->set("key", "value");
}

TEST(StoreServer, a_client_whose_server_goes_gets_a_lost_peer) {
  auto server = std::make_unique<StoreServer>();
  const auto store = connect_to(*server);
  std::thread blocked([&] {
    try {
      store->get("never", kLong);
      ADD_FAILURE() << "found it";
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.kind(), FaultKind::kPeerLost) << fault.what();
    }
  });
  std::this_thread::sleep_for(milliseconds(100));
  server.reset();
  blocked.join();
}

TEST(StoreClient, waits_for_a_server_that_starts_later) {
  int port = 0;
  {
    StoreServer probe;
    port = probe.port();
  }
  std::unique_ptr<StoreServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(200));
    server = std::make_unique<StoreServer>(StoreServerOptions{.port = port});
  });
  StoreClient client({.port = port});
  later.join();
  client.set("key", "value");
}

TEST(StoreClient, gives_up_when_nobody_answers) {
  int port = 0;
  {
    StoreServer probe;
    port = probe.port();
  }
  EXPECT_THROW(StoreClient({.port = port, .connect_timeout = milliseconds(300)}), Fault);
}

// Sends raw bytes; returns whether the server closed the connection within `patience` seconds.
bool closes_on(int port, const std::string& bytes, int patience = 300) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const timeval limit{patience, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  [[maybe_unused]] const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  char chunk[4096];
  ssize_t count = 0;
  while ((count = ::recv(fd, chunk, sizeof(chunk), 0)) > 0) {
  }
  const bool closed = count == 0 || errno == ECONNRESET;
  ::close(fd);
  return closed;
}

TEST(StoreClient, a_name_that_nobody_resolves_is_said_with_what_to_set) {
  try {
    StoreClient({.address = "no-such-host.invalid", .port = 1, .connect_timeout = milliseconds(100)});
    FAIL() << "connected";
  } catch (const Fault& fault) {
    EXPECT_NE(std::string(fault.what()).find("set MASTER_ADDR"), std::string::npos) << fault.what();
  }
}

TEST(StoreServer, malformed_packets_close_their_connection_and_nothing_else) {
  StoreServer server;
  const auto witness = connect_to(server);
  witness->set("key", "value");
  const std::string hello = std::string("\x09\0\0\0", 4) + "\x01" + std::string("1SKL", 4) + std::string("\0\0\0\0", 4);
  EXPECT_TRUE(closes_on(server.port(), std::string("\xff\xff\xff\xff", 4)));        // 4 GiB before a hello
  EXPECT_TRUE(closes_on(server.port(), std::string("\0\0\0\0", 4)));                // an empty frame
  EXPECT_TRUE(closes_on(server.port(), "GET / HTTP/1.1\r\n\r\n"));                  // another protocol
  EXPECT_FALSE(closes_on(server.port(), hello, 1));                                 // well-formed: stays open
  EXPECT_TRUE(closes_on(server.port(), hello + std::string("\x01\0\0\0\x63", 5)));  // unknown operation
  EXPECT_TRUE(closes_on(server.port(), hello + std::string("\x05\0\0\0\x02\xff\xff\xff\x7f", 9)));  // key of 2 GiB
  EXPECT_TRUE(closes_on(server.port(), hello + std::string("\xff\xff\xff\x7f", 4)));                // frame of 2 GiB
  EXPECT_EQ(witness->get("key", kLong), "value");
}

TEST(StoreServer, survives_random_bytes) {
  StoreServer server;
  const auto witness = connect_to(server);
  std::mt19937 random(7);
  const std::string hello = std::string("\x09\0\0\0", 4) + "\x01" + std::string("1SKL", 4) + std::string("\0\0\0\0", 4);
  for (int round = 0; round < 200; ++round) {
    std::string bytes = round % 2 == 0 ? "" : hello;
    const int length = 1 + static_cast<int>(random() % 60);
    bytes += std::string(1, static_cast<char>(random() % 64)) + std::string("\0\0\0", 3);
    for (int i = 0; i < length; ++i) bytes.push_back(static_cast<char>(random()));
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(server.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    [[maybe_unused]] const auto sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    ::close(fd);
  }
  witness->set("alive", "yes");
  EXPECT_EQ(witness->get("alive", kLong), "yes");
}

// "rank 2 is lost", from some time on.
class Abort {
 public:
  Abort() : later_([this] { std::this_thread::sleep_for(milliseconds(150)), over_ = true; }) {}
  ~Abort() { later_.join(); }
  StoreClientOptions options(int port) {
    StoreClientOptions options{.port = port};
    options.aborted = [this] { return over_ ? std::optional<std::string>("rank 2 is lost") : std::nullopt; };
    return options;
  }

 private:
  std::atomic<bool> over_{false};
  std::thread later_;
};

template <typename Call>
void expect_aborted(const Call& call) {
  try {
    call();
    ADD_FAILURE() << "it came";
  } catch (const Fault& fault) {
    EXPECT_EQ(fault.kind(), FaultKind::kAborted);
    EXPECT_STREQ(fault.what(), "rank 2 is lost");
  }
}

TEST(StoreClient, ends_a_wait_when_told_to) {
  StoreServer server;
  Abort abort;
  StoreClient store(abort.options(server.port()));
  expect_aborted([&] { store.get("never", kLong); });
  store.set("key", "of one that leaves");  // what is answered at once is done
  EXPECT_EQ(store.try_get("key"), "of one that leaves");
}

TEST(StoreClient, does_not_wait_for_a_server_that_says_nothing_when_told_to_end) {
  const UniqueFd mute = listen_on({"the test", "127.0.0.1", 0, ""});  // the kernel answers, nobody else
  Abort abort;
  expect_aborted([&] { StoreClient(abort.options(port_of(mute.get()))); });
}

TEST(Token, comes_from_the_environment_and_is_random) {
  ::setenv("LOCKSTEP_TOKEN", "abc", 1);
  EXPECT_EQ(token_from_environment(), "abc");
  ::unsetenv("LOCKSTEP_TOKEN");
  EXPECT_EQ(token_from_environment(), "");
  EXPECT_EQ(make_token().size(), 32u);
  EXPECT_NE(make_token(), make_token());
}

}  // namespace
}  // namespace lockstep::elastic
