// The rendezvous store: a small key-value service through which the ranks of a run find each other.
//
//   KeyValueStore  what users of the store see.
//   MemoryStore    the map itself, in this process.
//   StoreServer    serves a MemoryStore over TCP from a background thread. Embeddable: the launcher holds one, or
//                  rank 0 does at MASTER_ADDR:MASTER_PORT under a foreign launcher.
//   StoreClient    speaks to a StoreServer.
//
// Security: the server listens on 127.0.0.1 unless told otherwise, and beyond loopback it demands a token, which every
// client presents first. The token is never written to argv or to a log; it travels unencrypted, so the network between
// the nodes must be trusted. Packets, keys, values and the whole store have size limits; a malformed packet closes the
// connection it came on and nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::elastic {

using std::chrono::milliseconds;

// Sizes that no packet may exceed. Rendezvous moves addresses, not data.
inline constexpr std::size_t kMaxKeyBytes = 512;
inline constexpr std::size_t kMaxValueBytes = 1 << 20;
inline constexpr std::size_t kMaxKeysPerWait = 4096;
inline constexpr std::size_t kMaxStoreBytes = std::size_t{64} << 20;

// All methods may be called from any thread. Errors: bad_input for a key or value beyond the limits or a counter that
// is not a number; Fault{kTimeout} when the time is over; Fault{kPeerLost} when the server is gone.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  virtual void set(const std::string& key, std::string_view value) = 0;

  // Blocks until `key` is present.
  virtual std::string get(const std::string& key, milliseconds timeout) = 0;

  // The value, or nothing; does not wait for the key to appear.
  virtual std::optional<std::string> try_get(const std::string& key) = 0;

  // Adds to a decimal counter (absent = 0) and returns the new value.
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;

  // Stores `desired` when the current value is `expected` (nullopt: the key is absent). Returns whether it did.
  virtual bool compare_set(const std::string& key, const std::optional<std::string>& expected,
                           std::string_view desired) = 0;

  // Blocks until all keys are present.
  virtual void wait(const std::vector<std::string>& keys, milliseconds timeout) = 0;

  // Returns whether the key was there.
  virtual bool remove(const std::string& key) = 0;
};

// A store inside this process: for ranks that are threads, and for tests.
class MemoryStore final : public KeyValueStore {
 public:
  MemoryStore();
  ~MemoryStore() override;
  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t delta) override;
  bool compare_set(const std::string& key, const std::optional<std::string>& expected,
                   std::string_view desired) override;
  void wait(const std::vector<std::string>& keys, milliseconds timeout) override;
  bool remove(const std::string& key) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A store whose keys all begin with `prefix`: lets several groups share one server.
class PrefixStore final : public KeyValueStore {
 public:
  PrefixStore(std::shared_ptr<KeyValueStore> store, std::string prefix);
  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t delta) override;
  bool compare_set(const std::string& key, const std::optional<std::string>& expected,
                   std::string_view desired) override;
  void wait(const std::vector<std::string>& keys, milliseconds timeout) override;
  bool remove(const std::string& key) override;

 private:
  std::shared_ptr<KeyValueStore> store_;
  std::string prefix_;
};

struct StoreServerOptions {
  std::string address = "127.0.0.1";  // numeric address or host name to listen on
  int port = 0;                       // 0: the system picks one, see StoreServer::port()
  std::string token;                  // must not be empty when `address` is beyond loopback
  int max_connections = 4096;
};

// Starts serving in the constructor, stops in the destructor (connections are closed; both return within a second).
// Throws bad_input for an address beyond loopback without a token, environment_error when the port is in use or the
// address is not of this machine.
class StoreServer {
 public:
  explicit StoreServer(StoreServerOptions options = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  const std::string& address() const;
  int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct StoreClientOptions {
  std::string address = "127.0.0.1";
  int port = 0;
  std::string token;
  milliseconds connect_timeout{30'000};  // until a server answers; refused connections are retried, it may start later
  milliseconds call_timeout{30'000};     // for calls that do not wait for a key
  // Asked some times a second, from any thread, while a call waits: a reason ends it with Fault{kAborted}. Ranks that
  // meet wait for each other, and one that is lost, or whose node serves the store, never comes.
  std::function<std::optional<std::string>()> aborted;
};

// A call that blocks (get, wait) does not hold up other threads: each concurrent call has its own connection.
class StoreClient final : public KeyValueStore {
 public:
  // Connects and presents the token. Throws Fault{kTimeout} when no server answers in time, bad_input when the token is
  // refused.
  explicit StoreClient(StoreClientOptions options);
  ~StoreClient() override;
  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, milliseconds timeout) override;
  std::optional<std::string> try_get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t delta) override;
  bool compare_set(const std::string& key, const std::optional<std::string>& expected,
                   std::string_view desired) override;
  void wait(const std::vector<std::string>& keys, milliseconds timeout) override;
  bool remove(const std::string& key) override;

 private:
  class Impl;
  milliseconds call_timeout_;
  std::unique_ptr<Impl> impl_;
};

// The token of this run from the environment variable LOCKSTEP_TOKEN, "" when unset.
std::string token_from_environment();

// 32 hexadecimal digits from the kernel's random source.
std::string make_token();

}  // namespace lockstep::elastic
