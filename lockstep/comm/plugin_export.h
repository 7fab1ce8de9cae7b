// The plugin's side of comm/plugin.h: turns a C++ Backend into the C table, exceptions into status values.
//
//   std::unique_ptr<Backend> open_mine(const PluginOptions& options) { ... }
//   extern "C" __attribute__((visibility("default"))) const lockstep_comm_table* lockstep_comm_plugin() {
//     static const lockstep_comm_table table = lockstep::comm::export_backend<open_mine>("mine");
//     return &table;
//   }
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/backend.h"
#include "lockstep/comm/plugin.h"

namespace lockstep::comm {

// The host's store as the plugin sees it. Keys get the prefix of the world. Throws BackendError. Any thread.
class HostStore {
 public:
  HostStore(const lockstep_comm_store* store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}

  bool present() const { return store_ != nullptr; }

  void set(const std::string& key, const std::string& value) const {
    check(store_->set(store_->self, full(key).c_str(), value.data(), static_cast<std::int64_t>(value.size())), key);
  }

  std::string get(const std::string& key, Clock::time_point deadline) const {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    std::string value;
    check(fetch(key, std::max<std::int64_t>(left, 0), value), key);
    return value;
  }

  // Nothing when absent, or when the store cannot be asked: for diagnosis only.
  std::optional<std::string> try_get(const std::string& key) const {
    std::string value;
    return fetch(key, -1, value) == LOCKSTEP_COMM_OK ? std::optional(value) : std::nullopt;
  }

  std::int64_t add(const std::string& key, std::int64_t delta) const {
    std::int64_t result = 0;
    check(store_->add(store_->self, full(key).c_str(), delta, &result), key);
    return result;
  }

  void remove(const std::string& key) const { store_->remove(store_->self, full(key).c_str()); }

 private:
  std::string full(const std::string& key) const { return prefix_ + "/" + key; }

  std::int32_t fetch(const std::string& key, std::int64_t timeout_ms, std::string& value) const {
    value.resize(4096);
    std::int64_t length = 0;
    std::int32_t code = 0;
    do {
      value.resize(std::max(value.size(), static_cast<std::size_t>(length)));
      code = store_->get(store_->self, full(key).c_str(), timeout_ms, value.data(),
                         static_cast<std::int64_t>(value.size()), &length);
    } while (code == LOCKSTEP_COMM_OK && static_cast<std::size_t>(length) > value.size());
    value.resize(code == LOCKSTEP_COMM_OK ? static_cast<std::size_t>(length) : 0);
    return code;
  }

  static void check(std::int32_t code, const std::string& key) {
    if (code == LOCKSTEP_COMM_OK) return;
    if (code == LOCKSTEP_COMM_TIMEOUT) {
      throw BackendError(FaultKind::kTimeout, -1, "rendezvous key \"" + key + "\" did not appear in time");
    }
    throw BackendError(FaultKind::kPeerLost, -1, "the rendezvous store is gone (key \"" + key + "\")");
  }

  const lockstep_comm_store* store_;
  std::string prefix_;
};

struct PluginOptions {
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<GroupSettings> groups;
  std::string address;
  std::string interface_name;
  int device = 0;
  bool shared_memory = true;
  Clock::time_point connect_deadline;
  HostStore store{nullptr, ""};
};

namespace plugin_detail {

inline void report(lockstep_comm_status* status, std::int32_t code, int rank, const std::string& text) {
  status->code = code;
  status->rank = rank;
  const std::size_t length = std::min(text.size(), sizeof(status->text) - 1);
  std::memcpy(status->text, text.data(), length);
  status->text[length] = '\0';
}

inline std::int32_t code_of(FaultKind kind) {
  if (kind == FaultKind::kPeerLost) return LOCKSTEP_COMM_PEER_LOST;
  return kind == FaultKind::kTimeout ? LOCKSTEP_COMM_TIMEOUT : LOCKSTEP_COMM_ABORTED;
}

// Runs `call`, reports how it ended, returns its value or `otherwise`.
template <typename Call, typename Value>
Value guarded(lockstep_comm_status* status, Value otherwise, Call call) noexcept {
  report(status, LOCKSTEP_COMM_OK, -1, "");
  try {
    return call();
  } catch (const BackendError& error) {
    report(status, code_of(error.kind()), error.rank(), error.detail());
  } catch (const UserError& error) {
    const std::string all = error.what();
    const std::string tail = "; " + error.fix();
    const std::string problem = error.fix().empty() ? all : all.substr(0, all.size() - tail.size());
    report(status, error.code() == ExitCode::kEnvironment ? LOCKSTEP_COMM_ENVIRONMENT : LOCKSTEP_COMM_BAD_INPUT, -1,
           problem + "\n" + error.fix());
  } catch (const std::exception& error) {
    report(status, LOCKSTEP_COMM_ABORTED, -1, error.what());
  } catch (...) {
    report(status, LOCKSTEP_COMM_ABORTED, -1, "an unknown exception");
  }
  return otherwise;
}

inline Clock::time_point deadline_of(std::int64_t ns) { return Clock::time_point(std::chrono::nanoseconds(ns)); }

inline Operation operation_of(const lockstep_comm_operation& raw, int size) {
  const auto dtype = static_cast<DType>(raw.dtype);
  Operation operation;
  operation.kind = static_cast<OpKind>(raw.kind);
  operation.sequence = raw.sequence;
  operation.input = {raw.input, raw.input_count, dtype, raw.device, raw.stream};
  operation.output = {raw.output, raw.output_count, dtype, raw.device, raw.stream};
  operation.reduce = static_cast<ReduceOp>(raw.reduce);
  operation.peer = raw.peer;
  if (raw.send_counts != nullptr) operation.send_counts.assign(raw.send_counts, raw.send_counts + size);
  if (raw.receive_counts != nullptr) operation.receive_counts.assign(raw.receive_counts, raw.receive_counts + size);
  operation.device = raw.device;
  operation.stream = raw.stream;
  operation.ticket = raw.ticket;
  return operation;
}

template <std::unique_ptr<Backend> (*open_backend)(const PluginOptions&)>
void* open(const lockstep_comm_open_options* raw, lockstep_comm_status* status) {
  return guarded(status, static_cast<void*>(nullptr), [&]() -> void* {
    PluginOptions options;
    options.rank = raw->rank;
    options.size = raw->size;
    options.name = raw->name;
    for (std::int32_t i = 0; i < raw->group_count; ++i) {
      const lockstep_comm_group_settings& one = raw->groups[i];
      options.groups.push_back({one.group, one.algorithm, one.protocol, one.min_channels, one.max_channels});
    }
    options.address = raw->address;
    options.interface_name = raw->interface_name;
    options.device = raw->device;
    options.shared_memory = raw->shared_memory != 0;
    options.connect_deadline = Clock::now() + milliseconds(raw->connect_timeout_ms);
    options.store = HostStore(raw->store, raw->prefix);
    return open_backend(options).release();
  });
}

inline Backend& backend_of(void* group) { return *static_cast<Backend*>(group); }

inline void* subgroup(void* group, const std::int32_t* ranks, std::int32_t count, const char* name,
                      std::int64_t deadline_ns, lockstep_comm_status* status) {
  return guarded(status, static_cast<void*>(nullptr), [&]() -> void* {
    const std::vector<int> members(ranks, ranks + count);
    return backend_of(group).subgroup(members, name, deadline_of(deadline_ns)).release();
  });
}

inline std::int32_t concurrent(void* group) { return backend_of(group).concurrent_point_to_point() ? 1 : 0; }

inline void* prepare(void* group, const lockstep_comm_operation* raw, lockstep_comm_status* status) {
  return guarded(status, static_cast<void*>(nullptr),
                 [&]() -> void* { return backend_of(group).prepare(operation_of(*raw, backend_of(group).size())); });
}

inline void run(void* group, const lockstep_comm_operation* raw, std::int64_t deadline_ns,
                lockstep_comm_status* status) {
  guarded(status, 0, [&] {
    backend_of(group).run(operation_of(*raw, backend_of(group).size()), deadline_of(deadline_ns));
    return 0;
  });
}

inline std::int32_t join(void* group, const lockstep_comm_operation* raw, lockstep_comm_status* status) {
  return guarded(status, std::int32_t{0}, [&]() -> std::int32_t {
    return backend_of(group).join(operation_of(*raw, backend_of(group).size())) ? 1 : 0;
  });
}

inline void abort(void* group) { backend_of(group).abort(); }
inline void close(void* group) { delete &backend_of(group); }

}  // namespace plugin_detail

// The table of a backend that is opened by `open_backend`.
template <std::unique_ptr<Backend> (*open_backend)(const PluginOptions&)>
lockstep_comm_table export_backend(const char* name) {
  namespace detail = plugin_detail;
  return {LOCKSTEP_COMM_ABI,
          name,
          &detail::open<open_backend>,
          &detail::subgroup,
          &detail::concurrent,
          &detail::prepare,
          &detail::run,
          &detail::join,
          &detail::abort,
          &detail::close};
}

}  // namespace lockstep::comm

#define LOCKSTEP_EXPORT_COMM_BACKEND(backend_name, open_backend)                                            \
  extern "C" __attribute__((visibility("default"))) const lockstep_comm_table* lockstep_comm_plugin(void) { \
    static const lockstep_comm_table table = lockstep::comm::export_backend<open_backend>(backend_name);    \
    return &table;                                                                                          \
  }
