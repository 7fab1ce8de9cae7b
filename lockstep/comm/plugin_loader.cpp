// The host's side of comm/plugin.h: finds and opens a plugin, and makes it look like a Backend.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/backend.h"
#include "lockstep/comm/join.h"
#include "lockstep/comm/observed.h"
#include "lockstep/comm/plugin.h"
#include "lockstep/elastic/store.h"

namespace lockstep::comm {
namespace {

namespace fs = std::filesystem;

// ASan refuses RTLD_DEEPBIND, since its own interceptors must come first.
#if defined(LOCKSTEP_SANITIZED)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

struct KnownBackend {
  const char* name;
  const char* library;
  const char* package;
};
constexpr KnownBackend kKnown[] = {
    {"tcp", "", ""},
    {"gloo", "libgloo.so", "libgloo0"},
    {"mpi", "libmpi.so", "libopenmpi3"},
    {"nccl", "libnccl.so", "libnccl2"},
};

const KnownBackend* known(const std::string& name) {
  for (const auto& backend : kKnown) {
    if (name == backend.name) return &backend;
  }
  return nullptr;
}

// Where this code lives: the executable, or the engine library.
fs::path own_folder() {
  Dl_info info{};
  std::error_code error;
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) != 0 && info.dli_fname != nullptr) {
    const fs::path file = fs::canonical(info.dli_fname, error);
    if (!error) return file.parent_path();
  }
  const fs::path self = fs::canonical("/proc/self/exe", error);
  return error ? fs::path(".") : self.parent_path();
}

std::vector<fs::path> search_folders(std::vector<fs::path> folders) {
  if (const char* path = std::getenv("LOCKSTEP_PLUGIN_PATH")) {
    std::string_view rest = path;
    while (!rest.empty()) {
      const auto colon = rest.find(':');
      if (const auto entry = rest.substr(0, colon); !entry.empty()) folders.emplace_back(entry);
      rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
    }
  }
  const fs::path own = own_folder();
  std::error_code error;
  const fs::path executable = fs::canonical("/proc/self/exe", error);
  for (const fs::path& base : {own, error ? own : executable.parent_path()}) {
    for (const char* place : {"", "lockstep", "../lib", "../lib/lockstep", ".."}) folders.push_back(base / place);
  }
  return folders;
}

fs::path find_plugin(const std::string& backend, const std::vector<fs::path>& folders) {
  const std::string file = "liblockstep_comm_" + backend + ".so";
  std::error_code error;
  for (const auto& folder : search_folders(folders)) {
    if (fs::is_regular_file(folder / file, error)) return folder / file;
  }
  return {};
}

// An opened plugin. Never closed again: MPI and gloo leave threads and handlers behind that must keep their code.
const lockstep_comm_table& open_plugin(const std::string& backend, const std::vector<fs::path>& folders) {
  const KnownBackend* const facts = known(backend);
  const fs::path file = find_plugin(backend, folders);
  if (file.empty()) {
    throw environment_error(
        fmt::format("[comm] there is no plugin liblockstep_comm_{}.so beside this program", backend),
        facts != nullptr ? fmt::format("install {} and its headers and build again, or set LOCKSTEP_PLUGIN_PATH to the "
                                       "folder of the plugin",
                                       facts->package)
                         : "known backends are local, gloo, mpi and nccl");
  }
  void* const handle = ::dlopen(file.c_str(), kOpenFlags);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    const std::string reason = why == nullptr ? "unknown error" : why;
    const bool missing = facts != nullptr && reason.find(facts->library) != std::string::npos;
    throw environment_error(fmt::format("[comm] cannot open {}: {}", file.string(), reason),
                            missing ? fmt::format("install the package {}", facts->package)
                                    : "install the missing library, or build again");
  }
  const auto entry = reinterpret_cast<lockstep_comm_entry>(::dlsym(handle, LOCKSTEP_COMM_ENTRY));
  const lockstep_comm_table* const table = entry == nullptr ? nullptr : entry();
  if (table == nullptr || table->abi != LOCKSTEP_COMM_ABI) {
    throw environment_error(
        fmt::format("[comm] {} speaks plugin interface {}, this program {}", file.string(),
                    table == nullptr ? std::string("none") : std::to_string(table->abi), LOCKSTEP_COMM_ABI),
        "build plugin and program from the same source");
  }
  return *table;
}

[[noreturn]] void raise_user_error(const lockstep_comm_status& status) {
  const std::string text = status.text;
  const auto newline = text.find('\n');
  const std::string fix = newline == std::string::npos ? "" : text.substr(newline + 1);
  const std::string problem = "[comm] " + text.substr(0, newline);
  throw status.code == LOCKSTEP_COMM_ENVIRONMENT ? environment_error(problem, fix) : bad_input(problem, fix);
}

void check(const lockstep_comm_status& status) {
  switch (status.code) {
    case LOCKSTEP_COMM_OK:
      return;
    case LOCKSTEP_COMM_PEER_LOST:
      throw BackendError(FaultKind::kPeerLost, status.rank, status.text);
    case LOCKSTEP_COMM_TIMEOUT:
      throw BackendError(FaultKind::kTimeout, status.rank, status.text);
    case LOCKSTEP_COMM_BAD_INPUT:
    case LOCKSTEP_COMM_ENVIRONMENT:
      raise_user_error(status);
    default:
      throw BackendError(FaultKind::kAborted, status.rank, status.text);
  }
}

// Store calls for the plugin. No exception may leave them.
template <typename Call>
std::int32_t guarded(Call call) noexcept {
  try {
    return call();
  } catch (const Fault& fault) {
    return fault.kind() == FaultKind::kTimeout ? LOCKSTEP_COMM_TIMEOUT : LOCKSTEP_COMM_PEER_LOST;
  } catch (...) {
    return LOCKSTEP_COMM_ABORTED;
  }
}

elastic::KeyValueStore& store_of(void* self) { return *static_cast<elastic::KeyValueStore*>(self); }

std::int32_t store_set(void* self, const char* key, const char* value, std::int64_t length) {
  return guarded([&] {
    store_of(self).set(key, std::string_view(value, static_cast<std::size_t>(length)));
    return LOCKSTEP_COMM_OK;
  });
}

std::int32_t store_get(void* self, const char* key, std::int64_t timeout_ms, char* value, std::int64_t capacity,
                       std::int64_t* length) {
  return guarded([&] {
    elastic::KeyValueStore& store = store_of(self);
    const std::optional<std::string> found =
        timeout_ms < 0 ? store.try_get(key) : store.get(key, milliseconds(timeout_ms));
    if (!found) return LOCKSTEP_COMM_TIMEOUT;
    *length = static_cast<std::int64_t>(found->size());
    found->copy(value, static_cast<std::size_t>(capacity));
    return LOCKSTEP_COMM_OK;
  });
}

std::int32_t store_add(void* self, const char* key, std::int64_t delta, std::int64_t* result) {
  return guarded([&] {
    *result = store_of(self).add(key, delta);
    return LOCKSTEP_COMM_OK;
  });
}

std::int32_t store_remove(void* self, const char* key) {
  return guarded([&] {
    store_of(self).remove(key);
    return LOCKSTEP_COMM_OK;
  });
}

// The store and its C face, alive as long as any group of the world.
struct StoreBridge {
  std::shared_ptr<elastic::KeyValueStore> store;
  lockstep_comm_store face{};
};

class PluginBackend final : public Backend {
 public:
  PluginBackend(const lockstep_comm_table& table, void* group, int rank, int size, std::shared_ptr<StoreBridge> bridge)
      : table_(table), group_(group), rank_(rank), size_(size), bridge_(std::move(bridge)) {}
  ~PluginBackend() override { table_.close(group_); }

  const char* name() const override { return table_.name; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool concurrent_point_to_point() const override { return table_.concurrent_point_to_point(group_) != 0; }

  void* prepare(const Operation& operation) override {
    const lockstep_comm_operation raw = raw_of(operation);
    lockstep_comm_status status{};
    void* const ticket = table_.prepare(group_, &raw, &status);
    check(status);
    return ticket;
  }

  void run(const Operation& operation, Clock::time_point deadline) override {
    const lockstep_comm_operation raw = raw_of(operation);
    lockstep_comm_status status{};
    table_.run(group_, &raw, deadline.time_since_epoch().count(), &status);
    check(status);
  }

  bool join(const Operation& operation) override {
    const lockstep_comm_operation raw = raw_of(operation);
    lockstep_comm_status status{};
    const std::int32_t joined = table_.join(group_, &raw, &status);
    return joined != 0 && status.code == LOCKSTEP_COMM_OK;  // what failed shows when run() ends
  }

  std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                    Clock::time_point deadline) override {
    lockstep_comm_status status{};
    const auto count = static_cast<std::int32_t>(ranks.size());
    void* const made =
        table_.subgroup(group_, ranks.data(), count, name.c_str(), deadline.time_since_epoch().count(), &status);
    check(status);
    int self = 0;
    while (ranks[static_cast<std::size_t>(self)] != rank_) ++self;
    return std::make_unique<PluginBackend>(table_, made, self, count, bridge_);
  }

  void abort() noexcept override { table_.abort(group_); }

 private:
  static lockstep_comm_operation raw_of(const Operation& operation) {
    lockstep_comm_operation raw{};
    raw.kind = static_cast<std::int32_t>(operation.kind);
    raw.dtype =
        static_cast<std::int32_t>(operation.kind == OpKind::kSend ? operation.input.dtype : operation.output.dtype);
    raw.reduce = static_cast<std::int32_t>(operation.reduce);
    raw.peer = operation.peer;
    raw.sequence = operation.sequence;
    raw.input = operation.input.data;
    raw.input_count = operation.input.count;
    raw.output = operation.output.data;
    raw.output_count = operation.output.count;
    raw.send_counts = operation.send_counts.empty() ? nullptr : operation.send_counts.data();
    raw.receive_counts = operation.receive_counts.empty() ? nullptr : operation.receive_counts.data();
    raw.device = operation.device;
    raw.stream = operation.stream;
    raw.ticket = operation.ticket;
    return raw;
  }

  const lockstep_comm_table& table_;
  void* group_;
  int rank_;
  int size_;
  std::shared_ptr<StoreBridge> bridge_;
};

// Hands everything on.
class ObservedBackend final : public Backend {
 public:
  ObservedBackend(std::unique_ptr<Backend> backend, std::function<void(OpKind)> observer)
      : backend_(std::move(backend)), observer_(std::move(observer)) {}

  const char* name() const override { return backend_->name(); }
  int rank() const override { return backend_->rank(); }
  int size() const override { return backend_->size(); }
  bool concurrent_point_to_point() const override { return backend_->concurrent_point_to_point(); }
  void* prepare(const Operation& operation) override { return backend_->prepare(operation); }
  void run(const Operation& operation, Clock::time_point deadline) override {
    observer_(operation.kind);
    backend_->run(operation, deadline);
  }
  bool join(const Operation& operation) override { return backend_->join(operation); }
  std::unique_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name,
                                    Clock::time_point deadline) override {
    return std::make_unique<ObservedBackend>(backend_->subgroup(ranks, name, deadline), observer_);
  }
  void abort() noexcept override { backend_->abort(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::function<void(OpKind)> observer_;
};

std::unique_ptr<Backend> open_backend(const CommOptions& options) {
  if (options.backend == "local") {
    throw bad_input("[comm] the local backend has no processes to open", "use comm::LocalWorld");
  }
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw bad_input(fmt::format("[comm] rank {} of {}", options.rank, options.size), "use a rank from 0 to size - 1");
  }
  const lockstep_comm_table& table = open_plugin(options.backend, options.plugin_folders);
  auto bridge = std::make_shared<StoreBridge>();
  bridge->store = options.store;
  bridge->face = {options.store.get(), &store_set, &store_get, &store_add, &store_remove};
  lockstep_comm_open_options raw{};
  raw.rank = options.rank;
  raw.size = options.size;
  raw.name = options.name.c_str();
  std::vector<lockstep_comm_group_settings> groups;
  for (const GroupSettings& one : options.groups) {
    groups.push_back(
        {one.group.c_str(), one.algorithm.c_str(), one.protocol.c_str(), one.min_channels, one.max_channels});
  }
  raw.groups = groups.data();
  raw.group_count = static_cast<std::int32_t>(groups.size());
  raw.prefix = options.store_prefix.c_str();
  raw.address = options.address.c_str();
  raw.interface_name = options.interface.c_str();
  raw.device = options.device;
  raw.shared_memory = options.shared_memory ? 1 : 0;
  raw.connect_timeout_ms = options.connect_timeout.count();
  raw.store = options.store ? &bridge->face : nullptr;
  lockstep_comm_status status{};
  void* const group = table.open(&raw, &status);
  try {
    check(status);
  } catch (const BackendError& error) {
    throw Fault(error.kind(), error.rank(),
                fmt::format("connecting rank {} of {} over {}: {}{}", options.rank, options.size, options.backend,
                            error.rank() >= 0 ? fmt::format("rank {} ", error.rank()) : "", error.detail()));
  }
  return std::make_unique<PluginBackend>(table, group, options.rank, options.size, std::move(bridge));
}

}  // namespace

bool has_plugin(const std::string& backend) { return !find_plugin(backend, {}).empty(); }

Communicator open_communicator(const CommOptions& options) {
  return Communicator(open_backend(options), options.name, {}, options.timeout);
}

Communicator open_observed_communicator(const CommOptions& options, std::function<void(OpKind)> observer) {
  return Communicator(std::make_unique<ObservedBackend>(open_backend(options), std::move(observer)), options.name, {},
                      options.timeout);
}

}  // namespace lockstep::comm
